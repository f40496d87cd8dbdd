"""The adapters on the device: fetched by digest, kept in tiers, laid out for one batched product.

layer    an adapter's weights by layer and projection, and what one step does with them
loader   from files to memory: read once, checked once, kept in the host tier
slots    the device's tier: what is in which slot, its bytes, who leaves for whom
pool     who asks, who waits and who uses; the thread that loads
table    those that decode, side by side
"""
