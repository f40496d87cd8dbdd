"""The choices of a request about how text becomes tokens, and tokens text. Plain data, without a tokenizer."""

from __future__ import annotations

import msgspec

TemplateValue = str | bool | int | float


class Argument(msgspec.Struct, frozen=True):
    """Of a chat template. field: as the client calls it. is_usual: the value says what holds without it, so a template
    need not know it. is_optional: the argument has no effect with a template that does not read its name."""

    name: str
    value: TemplateValue
    field: str
    is_usual: bool = False
    is_optional: bool = False


class Rendering(msgspec.Struct, frozen=True):
    """How a conversation becomes a prompt. add_generation_prompt: it ends where the assistant is to speak;
    continue_final_message: in the midst of the last message, for the model to go on with. add_special_tokens: those
    that the tokenizer puts around a text, beside what the template writes."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: tuple[Argument, ...] = ()
    add_special_tokens: bool = False


USUAL = Rendering()


class TextStyle(msgspec.Struct, frozen=True):
    """What is shown of a completion. include_stop: the stop string that ends it as well; with_special: special tokens,
    which have no text otherwise; with_token_ids: its ids beside its text. follows_prompt: it goes on with the prompt's
    text, rather than being a text of its own."""

    include_stop: bool = False
    with_special: bool = False
    with_token_ids: bool = False
    follows_prompt: bool = False


PLAIN = TextStyle()
