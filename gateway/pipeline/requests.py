"""The requests of clients to the pipeline, once their bodies are understood.

Knows no field's name and no bound of an API. A request still holds text, and leaves open what its client did not say;
`Preparation` turns it into a request that the engine understands.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.protocol import SamplingParams
from gateway.text.conversation import Conversation as Conversation
from gateway.text.options import PLAIN, TextStyle

Prompt = Conversation | str | list[int]


class FieldNames(msgspec.Struct, frozen=True):
    """The names that the client's API has for fields in which only the pipeline can find a fault."""

    prompt: str
    """The field of the prompt, or of the list of prompts."""
    index: int | None = None
    """The place of the prompt in the list that the field holds; None: the field holds the prompt alone."""
    max_tokens: str = "max_tokens"
    n: str = "n"
    grammar: str | None = None
    """The field of the grammar; None where the API has none."""
    logprobs: str = "logprobs"
    shows_prompt: str | None = None
    """The field that asks for the tokens of the prompt as the model gets it; None: no field does."""

    @property
    def this_prompt(self) -> str:
        """The path of the prompt in the request's body, such as `input[1]`."""
        return self.prompt if self.index is None else f"{self.prompt}[{self.index}]"


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for completions of one prompt."""

    prompt: Prompt
    names: FieldNames
    """The client's names of fields, for errors."""
    sampling: SamplingParams
    """The sampling parameters, of which max_tokens has no effect."""
    given: frozenset[str] = frozenset()
    """The fields of `sampling` that the client gave a value; an adapter may have its own values for the others."""
    max_tokens: int | None = None
    """The most tokens to generate.

    None: as many as usual_max_tokens, or as the gateway's default, where there is room. 0: nothing is generated; only
    the prompt is processed.
    """
    clips_max_tokens: bool = False
    """True if a max_tokens larger than the room that is left becomes that room, instead of being refused."""
    usual_max_tokens: int | None = None
    """The most tokens to generate where max_tokens is None; None: the gateway's default."""
    n: int = 1
    """The number of completions."""
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    style: TextStyle = PLAIN
    """The rules by which the tokens of the completion become text."""
    prediction: str = ""
    """The completion that the client expects; "" is none."""
    add_special_tokens: bool = True
    """True if a prompt of text gets the tokenizer's special tokens around it."""
    max_prompt_tokens: int | None = None
    """The number of tokens to which a longer prompt is cut, at its beginning; None: it is not cut."""
    keeps_first: bool = False
    """True: max_prompt_tokens cuts the prompt at its end instead."""
    service_tier: str = "default"
    """The service tier, which decides the price and the weight of the request."""


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one text's embedding: the pooled final hidden states.

    Fields of `TextRequest` mean the same here.
    """

    prompt: str | list[int]
    names: FieldNames
    pooling: Literal["cls", "last", "mean"] | None = None
    """The pooling; None: the pooling that the model was made for, else the mean."""
    prompt_name: str | None = None
    """The name of the model's own prompt that goes before a text; None: the prompt for input_type, or the model's
    default."""
    input_type: Literal["query", "document"] | None = None
    """The role of the text in a search; None: none."""
    dimensions: int | None = None
    """The number of values of the embedding that the client wants; None: all."""
    add_special_tokens: bool = True
    max_prompt_tokens: int | None = None
    keeps_first: bool = False
    service_tier: str = "default"


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the score of one document: how relevant it is for a query.

    Fields of `TextRequest` mean the same here.
    """

    query: str
    document: str
    names: FieldNames
    """The names of the request's fields, where the query counts as the prompt."""
    max_document_tokens: int | None = None
    """The number of tokens to which a longer document is cut; None: as many as the model's context has room for."""
    instruction: str | None = None
    """The definition of relevance in words, for models that take an instruction; None: the model's own."""
    service_tier: str = "default"

    @property
    def prompt(self) -> str:
        """The query and the document, for the request log."""
        return f"{self.query}\n\n{self.document}"


class EmbeddingBounds(msgspec.Struct, frozen=True):
    """Bounds on all embeddings, or scores, of one request together."""

    max_numbers: int | None
    """The most numbers that the reply may hold; None where its format is compact."""
    max_tokens: int
    """The most tokens of all texts."""
