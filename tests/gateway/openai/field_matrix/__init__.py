"""Every field of a request times the values that a client may give it, and the outcome of each: the promise as data.

`FIELDS` is all of it, `table.as_markdown` shows it to readers, `test_field_matrix` checks a live gateway against it.
"""

from __future__ import annotations

from tests.gateway.openai.field_matrix.cases import Case, Field, ObservedEffects
from tests.gateway.openai.field_matrix.chat import CHAT
from tests.gateway.openai.field_matrix.embeddings import EMBEDDINGS
from tests.gateway.openai.field_matrix.messages import COUNT_TOKENS, MESSAGES
from tests.gateway.openai.field_matrix.responses import COMPACT, INPUT_TOKENS, RESPONSES
from tests.gateway.openai.field_matrix.text import TEXT
from tests.gateway.openai.field_matrix.tokens import TOKENS

FIELDS: list[Field] = [
    *CHAT,
    *TEXT,
    *RESPONSES,
    *INPUT_TOKENS,
    *COMPACT,
    *MESSAGES,
    *COUNT_TOKENS,
    *EMBEDDINGS,
    *TOKENS,
]

__all__ = ["FIELDS", "Case", "Field", "ObservedEffects"]
