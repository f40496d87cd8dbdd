"""A query and a document as the tokens that a model which ranks reads: a pair of texts, or a conversation of its own.

Documents that are too long are cut at their ends. Knows no field of an API.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from gateway.text.conversation import Message
from gateway.text.options import Rendering
from gateway.text.tokenizer import Tokenizer

QUERY, DOCUMENT = "query", "document"
"""The roles of the messages with the two texts, as sentence-transformers' chat templates have them.

An instruction is a message of the role `system`.
"""


class EncodedPair(NamedTuple):
    """The token ids of a query and a document together."""

    token_ids: list[int]
    num_first_tokens: int
    """The number of tokens in the first segment, for a model that tells segments apart; 0 for others."""


class QueryTooLong(Exception):
    """The error for a query that leaves no room for a document."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens)
        self.num_tokens = num_tokens


def encode_pair(tokenizer: Tokenizer, query: str, document: str, room: int, most: int | None = None) -> EncodedPair:
    """Return the token ids of a query and a document, with the special tokens that the tokenizer puts around them.

    room: the most tokens of all together.
    most: the most tokens of the document; None: as many as there is room for.

    Raises QueryTooLong: when the query leaves no room for a document.
    """
    backend = tokenizer.backend
    first = backend.encode(query, add_special_tokens=False)
    second = backend.encode(document, add_special_tokens=False)
    left = room - len(first) - backend.num_special_tokens_to_add(True)
    if left < 1:
        raise QueryTooLong(len(first))
    second.truncate(left if most is None else min(left, most))
    both = backend.post_process(first, second, add_special_tokens=True)
    kinds = list(both.type_ids)
    return EncodedPair(list(both.ids), kinds.index(1) if tokenizer.has_segments and 1 in kinds else 0)


def encode_pair_by_template(
    tokenizer: Tokenizer, query: str, document: str, room: int, most: int | None, *, instruction: str, answers: bool
) -> EncodedPair:
    """Return the token ids of a query and a document as the chat template shows them.

    room, most: as for `encode_pair`.
    instruction: the text before the pair; "" for none.
    answers: True: with the beginning of an answer behind the pair.

    Raises QueryTooLong: when the query leaves no room for a document.
    """
    rendered = partial(_render_pair, tokenizer, query, instruction=instruction, answers=answers)
    around = len(_tokens(tokenizer, rendered("")))
    left = room - around
    if left < 1:
        raise QueryTooLong(around)
    left = left if most is None else min(left, most)
    offsets = tokenizer.backend.encode(document, add_special_tokens=False).offsets
    while True:
        if len(offsets) > left:
            document = document[: offsets[left - 1][1]]
        token_ids = _tokens(tokenizer, rendered(document))
        if len(token_ids) <= room:
            return EncodedPair(token_ids, 0)
        if left == 1:
            raise QueryTooLong(len(token_ids))
        left = max(left - (len(token_ids) - room), 1)  # what is cut may meet the template in other tokens


def _render_pair(tokenizer: Tokenizer, query: str, document: str, *, instruction: str, answers: bool) -> str:
    messages: list[Message] = [{"role": QUERY, "content": query}, {"role": DOCUMENT, "content": document}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    return tokenizer.render_chat(messages, rendering=Rendering(add_generation_prompt=answers))


def _tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_text(text, add_special_tokens=False)
