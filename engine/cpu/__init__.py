"""A step on a CPU.

batch       a plan's tokens, positions and masks
attention   the paged cache, and one step's attention over it
tables      adapters side by side, as batched products want them
lora        the adapters of one step
path        the three together: a plan to hidden states
"""
