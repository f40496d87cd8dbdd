"""Hashes of blocks, and slots for states, beside the blocks of the cache (`engine.scheduling.block_manager`).

block_hashes    what makes two blocks equal
state_slots     the slots for states, in models that keep some: sequences and snapshots
"""
