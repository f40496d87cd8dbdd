"""Tools that a model may call: how a prompt shows them, how the model writes calls, and how text becomes calls again.

    tool           tools, and which of them a completion may call
    formats        the ways in which models write calls, as data, and the choice of one by the chat template
    prompt         conversations with tools for chat templates that know none
    grammar        the grammar that the engine holds a completion to
    parser         text that comes piece by piece to content and calls
    arguments      the arguments of one call, which some models write one by one, to a JSON object
    content_text   that content: stop strings, and white space that may lead to a call

Knows no field of an API and no engine. These laws hold:

- The format is the model's. `formats` reads it off the chat template. The gateway names the literal pieces, the tools
  and whether there must be a call (`CallGrammar`); the engine makes the grammar of them and knows no format.
- No text can be read both as content and as a call. The beginning of a call cannot occur in the text beside it, so the
  parser decides by letters alone. The parser holds back text that may become a call; text between content and a call
  belongs to neither.
- A marker that is a special token goes over the border to the engine as its id. Completions of such a model are
  decoded with special tokens, of which the grammar allows no other.
- One parser serves whole replies and streams, fed token by token. Stop strings see the content that it lets through.
- A schema travels with the name that its client gives it, and a refusal brings that name back as `param`.

The tools that clients send are in `gateway.openai.chat`; `engine.grammar.tool_calls` writes the grammar in Lark, with
each schema through the same checks as a `response_format`.
"""
