"""The backend of our own engine, over ZeroMQ. Only this room talks to an engine.

    client         the backend: puts the parts together, loads adapters
    link           the connection to one engine; frames reads its messages
    condition      whether the engine is there, its bounds and its last heartbeat
    requests       the requests under way; window bounds them, used counts their tokens for the pool's other engines
    stream         the messages of one request; backlog joins what a slow reader has not taken yet
    recorder       the usage of each attempt, recorded once
    failures       the engine's errors as clients get them
    adapter_calls  what was asked about adapters, until the engine answers

It knows nothing of HTTP, tenants or prices.
"""
