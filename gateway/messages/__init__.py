"""Endpoint: messages, Anthropic's API of turns and content blocks. Only this room knows Anthropic's field names.

    wire, blocks, tools_wire  structs of requests and replies
    events                    structs of the events of a stream
    conversation              from turns and blocks to the messages of a chat template
    tools                     from tools and a choice among them to the tools that may be called
    options                   from a request to the pipeline's
    thinking                  the part of a text that the model wrote as thinking, and its signature
    progress                  a message as it comes into being: pieces in, events and the message out
    reply                     the items of a run as one object, or as the bytes of a stream
    errors                    errors as Anthropic's clients expect them
    models                    the list of models for these clients
    handler, count            POST /v1/messages, and POST /v1/messages/count_tokens

It stands on OpenAI's room for what all APIs share: Idempotency-Key, the context of a request, headers of a reply. One
`Progress` makes the events of a stream and the whole message, so that these cannot differ.
"""
