"""The one way to run a request, called by every API. It knows neither HTTP nor the names of an API's fields.

    context         the caller of a request: principal, request id, deadline, and whether the client is gone
    pipeline        `Pipeline.complete` and `Pipeline.embed`: place, prepare, admit, run, close
    placing         from a model string to a pool, an adapter and the arm of an experiment
    routes          requests by the name of a route: one target after the other, until one has begun to answer
    preparation     from a prompt to a request that a backend can run: defaults, tokens, grammar, bounds
    bounds          the most that a request may ask of its model
    tokenizing      texts to token ids; a text longer than any context is refused before it is read
    admitting       reserves the most that prepared prompts can use
    items           the items of one prompt's reply, from one replica after the other or from two side by side
    run             an admitted request while its items are read; merge joins the items of several prompts
    shadows         copies of requests for shadow targets, which run after the reply and which no client sees
    collected       the items of a run put together, each choice as a whole
    token_requests  tokens of a text and text of tokens, without an engine

Backends yield text, so nothing here turns token ids into text.
"""
