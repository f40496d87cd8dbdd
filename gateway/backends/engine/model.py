"""The base model of an engine as a gateway knows it: its tokenizer and the sizes in its configuration.

Makes token ids of prompts. Knows neither engines nor connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.config import ModelConfig, load_model_config, model_digest
from gateway.backends.base import Capabilities, Fit, Message, PreparedPrompt, unchanged
from gateway.domain.errors import InvalidRequest
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import Tool

MAX_CHOICES = 128
MAX_IN_FLIGHT = 1 << 20
"""Choices that are admitted while no engine has said how many it takes."""


class EngineModel:
    """`Model` of a prepared folder."""

    def __init__(self, digest: str, config: ModelConfig, tokenizer: Tokenizer) -> None:
        """Make the model of a prepared folder's parts.

        digest: as `engine.config.model_digest` computes it.
        """
        self.digest = digest
        self.config = config
        self.tokenizer = tokenizer
        self.capabilities = Capabilities(
            max_model_len=config.max_position,
            vocab_size=config.vocab_size,
            max_choices=MAX_CHOICES,
            max_in_flight=MAX_IN_FLIGHT,
            embedding_size=config.hidden_size,
            embedding_sizes=config.embedding_sizes,
            task=config.task,
            longest_token_bytes=tokenizer.longest_token_bytes,
        )
        """The bounds while no engine of the model is connected."""

    @classmethod
    def load(cls, folder: Path) -> EngineModel:
        """Read a prepared model's folder, which takes the better part of a second.

        Raises UnsupportedModel, OSError or ValueError: when the folder holds no model that can be served.
        """
        return cls(model_digest(folder), load_model_config(folder), Tokenizer.from_folder(folder))

    def prepare_chat(
        self,
        messages: list[Message],
        tools: Sequence[Tool] = (),
        rendering: Rendering = USUAL,
        fit: Fit = unchanged,
        owner: str = "",
    ) -> PreparedPrompt:
        """Render the chat template and tokenize what fits.

        Raises as `gateway.backends.base.Model.prepare_chat`.
        """
        text = fit(self.tokenizer.render_chat(messages, tools, rendering))
        if rendering.add_special_tokens:
            token_ids = self.tokenizer.encode_text(text)
        else:
            token_ids = self.tokenizer.encode_chat(text, owner)
        return PreparedPrompt(token_ids, len(token_ids))

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        """Tokenize a plain prompt, or check ids against the vocabulary.

        field: the name of the request's field that holds the prompt. add_special_tokens: False: the tokenizer adds no
        tokens of its own, such as one for the beginning of a text.

        Raises as `gateway.backends.base.Model.prepare_text`.
        """
        token_ids = (
            self.tokenizer.encode_text(prompt, add_special_tokens=add_special_tokens)
            if isinstance(prompt, str)
            else prompt
        )
        if not token_ids:
            raise InvalidRequest(f"'{field}' must have at least one token.", param=field, code="invalid_value")
        vocab_size = self.config.vocab_size
        if not isinstance(prompt, str) and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            wrong = next(index for index, each in enumerate(token_ids) if not 0 <= each < vocab_size)
            raise InvalidRequest(
                f"Invalid value for '{field}[{wrong}]': token ids must be in 0..{vocab_size - 1}.",
                param=f"{field}[{wrong}]",
                code="invalid_value",
            )
        return PreparedPrompt(token_ids, len(token_ids))
