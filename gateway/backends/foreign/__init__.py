"""The backends of servers of other makers, over HTTP. Only this room talks to such a server.

    backend      the backend: puts the parts together, runs requests
    driver       the interface of one kind of server; drivers has the kinds
    server       the connections to one server; connection is one of them, sse reads its events
    condition    whether the server is well, by looking and by what requests come to
    attempt      one request as it is counted and recorded
    reply        the parts of a reply, as every driver reads them
    text         the text of a choice, where a server returns text
    model        a base model of which nobody here has the tokenizer
    failures     what goes wrong, as clients get it

Servers are strangers: see README.md for what is bounded, checked and billed.
"""
