"""The parts of `engine.scheduling.block_manager`: the pool of blocks, their hashes, cached prefixes, slots for states.

block_pool      which blocks are used, which keep what they held, and which go first
block_hashes    what makes two blocks equal
prefix_search   the longest beginning that is cached
state_slots     the slots for states, in models that keep some: sequences and snapshots
"""
