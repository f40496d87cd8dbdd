"""The pool of blocks, what makes two equal, prefixes, and slots for states, below `engine.scheduling.block_manager`.

block_pool      which blocks are used, which keep what they held, and which go first
block_hashes    what makes two blocks equal
prefix_search   the longest beginning that is cached
state_slots     the slots for states, in models that keep some: sequences and snapshots
"""
