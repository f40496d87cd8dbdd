"""What is known of the cache beside its blocks (`engine.scheduling.block_manager`).

block_hashes    what makes two blocks equal
state_slots     the slots for states, in models that keep some: sequences and snapshots
"""
