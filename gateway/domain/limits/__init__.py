"""Decisions about limits, without I/O: what a request can use, which part of a limit a gateway holds, and refusals.

    limit, work        limits with their calendar windows; the most that a request can use, and what it used
    exchange, store    one exchange of gateways' parts in the database, and its interface
    slices, holdings   the parts that one gateway holds, and the requests that have reserved some of them
    queue_share, refusal  the bound on one tenant's completions in engines' queues; refusals in words and headers
    clock              the database's time between two readings

Knows no SQL, and nothing of what a request asks for beside its size.
"""
