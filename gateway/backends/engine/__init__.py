"""The backend of our own engine, over ZeroMQ. Only this room talks to an engine.

    client         the backend: sends requests, ends them, loads adapters
    link           the connection to one engine; frames reads the messages, window bounds the requests in flight
    stream         the messages of one request; backlog joins what a slow reader has not taken yet
    adapter_calls  what was asked about adapters, until the engine answers
    snapshot       the state and the pace of an engine at one moment
    text           token ids to text, calls and log-probabilities; choices and calling_choice do so for one choice

It knows nothing of HTTP, tenants or prices.
"""
