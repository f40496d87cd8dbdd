"""Adapters: fetched by content key and kept in two tiers, the host's and the device's.

    layer    an adapter's weights by layer and projection
    loader   from files to memory: read once, checked once, kept in the host tier
    slots    the device's tier: the content of each slot, its bytes, and the adapter that gives way
    pool     the requests that wait for adapters or use them; the thread that loads

Identity is the digest. Both tiers are bounded by bytes, least recently used first out: the host's holds validated
adapters, ready to copy; the device's has slots as well. A slot is reserved before its load begins, and a load runs on
a thread of low priority beside the steps. An adapter in use is never evicted, one that was just loaded not before its
first use; pins take at most half. Waiters are served in order, and after half a second each closes the least recently
used slot to new users, so the wait is bounded (`pool` says by what). The loading thread shares the interpreter with
the steps, so it works in few large calls: one read, one copy of all tensors, one check that all are finite.
"""
