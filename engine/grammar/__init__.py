"""Structured output: enforces a grammar on a completion, token by token, with llguidance. The one room that imports it.

    limits         the bounds on a grammar's cost
    json_schema    the enforced part of JSON Schema, and the refusal of the rest by name
    tool_calls     calls of tools in a model's format, around their arguments' schemas
    source         a request's grammar, of any kind, as one text in llguidance's Lark dialect
    vocabulary     the bytes of the model's tokens
    matcher        the place of one completion in its grammar
    thinking       the thinking before a grammar, in which it holds nothing
    worker         the process that tries grammars out, and dies of a hostile one
    compiler       the queue of grammars to compile, beside the stepping thread

It reads the tokenizer's vocabulary, and never makes or parses text. A process beside the engine tries each grammar out
under hard limits of time, memory and stack, and dies of a hostile one. A thread compiles the accepted ones again, of
each tenant in turn, cached per tenant. A matcher has a budget of processor time per token; one that exceeds it ends its
own request.
"""
