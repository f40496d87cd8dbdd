"""The engine: one process per base model that turns token ids into token ids.

It knows nothing about HTTP, text, money or SQL, and of a tenant only an opaque id and a weight.

protocol        what gateways and engines say to each other
server          the thread that talks to gateways; mailbox, usage_book: what it shares and keeps
core            the thread that steps; compilations, statistics: who waits for a grammar, what is counted
sequence        what scheduler and runner tell each other
scheduling      which tokens the next step computes
model_runner    a plan computed: hidden states, then what requests want of them
cpu, cuda       a plan to hidden states, on each kind of device; device, transfers: what others know of it
models          the forward pass, weights, positions
lora            adapters: tiers and slots
sampling        from hidden states to tokens, log-probabilities, embeddings
grammar         structured output
config, setup   how an engine is set up, and its parts wired together; hardware: on what
prepare         base models made ready
fake            an engine without a model, for the gateway's tests
bench           how fast it is
"""
