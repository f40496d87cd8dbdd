"""The OpenAI-compatible API: wire structs, handlers, event streams. Only this room knows OpenAI's field names.

Every field of OpenAI's requests, and those of vLLM's that are served, is in a wire struct: msgspec types and bounds
it, `gateway.http.explain` puts into words what is wrong, and a field that is in no struct is refused by its name. Names
in `chat_template_kwargs` that the model's template does not read change nothing. The other checks have places of their
own:

    several fields together          shared/options.py, chat/rendering.py, shared/grammar.py, chat/tools.py,
                                     responses/options.py, responses/tools.py
    the model, its context, a tenant gateway.pipeline.bounds
    the chat template                gateway.text.template_arguments, which parses a template once to know what it reads

`tests/gateway/openai/field_matrix` has each field with values of every kind and what becomes of them. One test holds
a gateway to that matrix, another one the structs and OpenAI's names; `tests/conformance/fields.md` is written from
it.

Error messages repeat at most 100 characters of what a client sent. `shared/obfuscation.py` pads streamed events after
they are encoded, so streams without padding pay nothing. `system_fingerprint` is the engine's (weights, versions,
device, number format), mixed with the adapter's version rather than with its content, which only its owner may
compare. `/tokenize` and `/detokenize` ask no engine and no limit; `gateway.support.pace` bounds them per tenant.
"""
