"""Encoders, such as BERT: each token sees all others of its text, so that a text is computed at once, without a cache.

    model      the model class of the installed transformers, with attention that keeps the texts of a step apart
    attention  attention of a step's texts, in both directions, each text by itself
    trial      what each layer asks of attention, found by a first text
    build      from a folder to a model, proven against transformers alone, and what adapters may target on it
    runner     plans of the scheduler computed: pooled hidden states, and scores

A step's texts lie one after the other, a row for each token, without padding; tokens meet in attention alone. Encoders
share with decoders, from `engine.models.general`: loading, linears with adapters, the attention interface.
"""
