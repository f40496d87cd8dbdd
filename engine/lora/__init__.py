"""Adapters: fetched by content key and kept in two tiers, the host's and the device's.

layer    an adapter's weights by layer and projection
loader   from files to memory: read once, checked once, kept in the host tier
slots    the device's tier: what is in which slot, its bytes, who leaves for whom
pool     who asks, who waits and who uses; the thread that loads
"""
