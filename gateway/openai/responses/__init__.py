"""Endpoint: responses, OpenAI's API of items and events.

    wire, items, tools_wire   structs of requests and replies
    events                    structs of the events of a stream
    conversation              from items to the form in which they are stored, and to what a chat template takes
    tools, custom_input       from tools and a choice among them to what a completion may call, and custom tools back
    options                   from a request to the pipeline's
    progress, open_items      a response as it comes into being: pieces in, events and the response out
    truncation                leaves out the oldest turns of a conversation that does not fit the model's context
    reply                     what a run yields as one object, or as the bytes of a stream
    state                     stored responses: what a request goes on from, and what is stored of its reply
    checked_request           a request, checked and translated, and the reply that is made of its run
    handler, input_tokens     POST /v1/responses, and POST /v1/responses/input_tokens
    compact, sealed_items     POST /v1/responses/compact, and what the server seals for a client to keep
    background                responses that are queued, and made by whichever gateway has room
    stored                    the routes that show and delete stored responses

One `Progress` makes the events of a stream, the whole reply and the stored response, so that these cannot differ. Ids
are made of the request's: `resp_<id>` and, numbered from the first input item to the last output item,
`msg_<id>_<n>`, `rs_<id>_<n>`, `fc_<id>_<n>`, `ctc_<id>_<n>`, `cmp_<id>_<n>`.
"""
