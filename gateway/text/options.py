"""The choices of a request about how text becomes tokens, and tokens text. Plain data, without a tokenizer."""

from __future__ import annotations

import msgspec

TemplateValue = str | bool | int | float


class Argument(msgspec.Struct, frozen=True):
    """An argument of a chat template."""

    name: str
    value: TemplateValue
    field: str
    """The name by which the client calls the argument."""
    is_usual: bool = False
    """True: the value is the template's default, so a template need not know the argument."""
    is_optional: bool = False
    """True: the argument has no effect with a template that does not read its name."""


class Rendering(msgspec.Struct, frozen=True):
    """Options for rendering a conversation to a prompt."""

    add_generation_prompt: bool = True
    """True: the prompt ends with the beginning of an assistant's turn."""
    continue_final_message: bool = False
    """True: the prompt ends within the last message, which the model continues."""
    arguments: tuple[Argument, ...] = ()
    add_special_tokens: bool = False
    """True: the tokenizer puts its special tokens around the text, beside those of the template."""
    fits_system: bool = False
    """True: system messages after the first message become turns of the user, if the chat template takes a system
    message at the beginning alone."""
    may_think: bool = True
    """False: the client wants no thinking. A model that begins to think by itself may not where a grammar holds all
    that it writes."""


USUAL = Rendering()


class TextStyle(msgspec.Struct, frozen=True):
    """Options for the text of a completion."""

    include_stop: bool = False
    """True to show the stop string that ends the completion."""
    with_special: bool = False
    """True to show special tokens, which have no text otherwise."""
    with_token_ids: bool = False
    """True to show token ids beside the text."""
    follows_prompt: bool = False
    """True if the completion goes on with the prompt's text, rather than being a text of its own."""


PLAIN = TextStyle()
