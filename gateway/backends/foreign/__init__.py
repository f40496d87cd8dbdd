"""The backends of servers of other makers, over HTTP. Only this room talks to such a server.

    backend      the backend: puts the parts together
    driver       the interface of one kind of server; drivers has the kinds
    server       the connections to one server; connection is one of them, sse and lines split what it sends
    condition    whether the server is well, by asking it and by the ends of its requests
    adapters     the adapters of one server: loaded, tried, unloaded
    own_keys     the keys that projects bring, and those that the server refuses
    requests     the open requests; stream reads one reply, attempt counts and records it
    reply        the parts of a reply, as every driver reads them
    errors       the errors that a server sends, for the gateway and for the operator's log
    text         the text of a choice, where a server returns text
    model        a base model of which nobody here has the tokenizer
    failures     the errors that clients get

Servers are strangers: see README.md for what is bounded, checked and billed.
"""
