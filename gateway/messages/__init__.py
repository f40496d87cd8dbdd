"""Endpoint: messages, Anthropic's API of turns and content blocks. Only this room knows Anthropic's field names.

    wire, blocks, tools_wire  what clients send and get, and events what streams consist of
    conversation              from turns and blocks to what a chat template takes
    tools                     from tools and a choice among them to what a completion may call
    options                   from a request to the pipeline's
    thinking                  the part of a text that the model wrote as thinking, and its signature
    progress                  a message as it comes into being: pieces in, events and the message out
    reply                     what a run yields as one object, or as the bytes of a stream
    errors                    errors as Anthropic's clients expect them
    models                    the list of models for these clients
    handler, count            POST /v1/messages, and the tokens that one would be billed for

It stands on OpenAI's room for what all APIs share: Idempotency-Key, the context of a request, headers of a reply. One
`Progress` makes the events of a stream and the whole message, so that these cannot differ.
"""
