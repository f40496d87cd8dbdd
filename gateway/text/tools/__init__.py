"""Tools that a model may call: how it is told of them, how it writes calls, and how its text becomes calls again.

    tool       tools, and what of them a completion may call
    formats    the ways in which models write calls, as data, and which one a chat template asks for
    prompt     conversations with tools for chat templates that know none
    grammar    what the engine holds a completion to
    parser     text that comes piece by piece to content and calls
    said       that content: stop strings, and white space that may lead to a call

It knows no field of an API and no engine.
"""
