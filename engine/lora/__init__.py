"""The adapters on the device: fetched by digest, kept in tiers, laid out for one batched product.

layer    an adapter's weights by layer and projection, and what one step does with them
loader   from files to memory: read once, checked once, kept in the host tier
pool     the device's slots: references, pins, least recently used, the thread that fills them
table    those that decode, side by side
"""
