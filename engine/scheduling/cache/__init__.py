"""The pool of blocks, their hashes, and slots for states, below `engine.scheduling.block_manager`.

block_pool      which blocks are used, which keep what they held, and which go first
block_hashes    what makes two blocks equal
state_slots     the slots for states, in models that keep some: sequences and snapshots
"""
