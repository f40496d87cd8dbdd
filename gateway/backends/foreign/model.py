"""The base model of servers whose tokenizer and chat template nobody here has: text goes to the server as it is.

The tokens of a prompt are bounded by its bytes, since a token has one byte of text at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.backends.base import Capabilities, Fit, Message, PreparedPrompt, unchanged
from gateway.domain.errors import InvalidRequest
from gateway.domain.pools.foreign_settings import UNKNOWN_LEN, ForeignSettings
from gateway.domain.routing.foreign_usage import TEMPLATE_TOKENS
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import Tool

MESSAGE_TOKENS = 16
"""The most tokens that a chat template puts around one message."""

LONGEST_TOKEN_BYTES = 32
"""The assumed bytes of the longest token: a prompt of more bytes than the context times this number is refused."""


class OpaqueModel:
    """The `Model` whose files only a server knows."""

    def __init__(self, digest: str, settings: ForeignSettings) -> None:
        """Make the model from a pool's settings.

        digest: as `opaque_digest` returns it.
        """
        self.digest = digest
        self.capabilities = Capabilities(
            max_model_len=settings.max_model_len or UNKNOWN_LEN,
            vocab_size=1,
            max_choices=settings.max_choices,
            max_in_flight=settings.max_in_flight,
            embedding_size=0,
            longest_token_bytes=LONGEST_TOKEN_BYTES,
            features=frozenset(),
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """Raise InvalidRequest: nobody here has the tokenizer."""
        raise InvalidRequest(
            "The tokens of this model are not known here: only the server that runs it has its tokenizer.",
            param="model",
            code="unsupported_value",
        )

    def prepare_chat(
        self,
        messages: list[Message],
        tools: Sequence[Tool] = (),
        rendering: Rendering = USUAL,
        fit: Fit = unchanged,
        owner: str = "",
    ) -> PreparedPrompt:
        """Return an upper bound of a conversation's tokens.

        Raises as `gateway.backends.base.Model.prepare_chat`.
        """
        num_bytes = _text_bytes([*messages, *(tool.described() for tool in tools)])
        num_tokens = num_bytes + MESSAGE_TOKENS * (1 + len(messages) + len(tools)) + TEMPLATE_TOKENS
        return self._prompt_within_context(num_bytes, num_tokens, "messages")

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        """Return an upper bound of a prompt's tokens.

        Raises as `gateway.backends.base.Model.prepare_text`.
        """
        if not isinstance(prompt, str):
            raise InvalidRequest(
                f"'{field}' must be text with this model: its token ids are not known here.",
                param=field,
                code="unsupported_value",
            )
        if not prompt:
            raise InvalidRequest(f"'{field}' must have at least one token.", param=field, code="invalid_value")
        num_bytes = len(prompt.encode(errors="replace"))
        return self._prompt_within_context(num_bytes, num_bytes + MESSAGE_TOKENS, field)

    def _prompt_within_context(self, num_bytes: int, num_tokens: int, field: str) -> PreparedPrompt:
        length = self.capabilities.max_model_len
        if num_bytes > length * LONGEST_TOKEN_BYTES:
            raise InvalidRequest(
                f"This model's maximum context length is {length} tokens. However, the {field} has {num_bytes} bytes.",
                param=field,
                code="context_length_exceeded",
            )
        return PreparedPrompt([], num_tokens)


def _text_bytes(values: list[Any]) -> int:
    """Return the bytes of all texts in JSON values, names of fields included."""
    left, size = list(values), 0
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value.encode(errors="replace"))
        elif isinstance(value, dict):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        else:
            size += 24  # a number, true, false or null
    return size
