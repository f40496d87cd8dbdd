"""Models that transformers computes: its model class, with attention over our cache and adapters on its linears.

    interface   the function that transformers calls for attention, and what it asks for in each layer
    loading     from a folder to a model of the installed transformers, or a refusal; remote code is never run
    linears     the model's linears, with the deltas of a step's adapters
    trial       a first text, which shows how each layer attends and which linears adapters can be on
    decoder     one step: rows in, hidden states and logits out
    proof       a text computed in pieces over the cache beside the same text computed by transformers alone

A model is taken for what it shows. How a layer attends is what it asks of the attention interface in a trial, and what
it computes over the cache in pieces has to be what transformers computes at once with attention of its own: a state
beside keys and values, or tokens that meet elsewhere than in attention, cannot pass. Slower than the engine's own
decoder: norms, rotations and activations are single operations, and projections are not fused.
"""
