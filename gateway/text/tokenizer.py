"""Text to token ids with a model folder's own tokenizer and chat template. Never imports torch, knows no HTTP.

`PreTrainedTokenizerFast` is named outright: `AutoTokenizer` would import torch to find the same class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from gateway.errors import InvalidRequest
from gateway.text.token_text import TokenText

Message = dict[str, Any]


class Tokenizer:
    """One model's tokenizer. Encoding is thread-safe and lets other threads run."""

    def __init__(self, fast: PreTrainedTokenizerFast) -> None:
        self._fast = fast
        self.backend: BackendTokenizer = fast.backend_tokenizer
        # A tokenizer.json may ask for either; a prompt must be neither cut nor filled up in silence.
        self.backend.no_truncation()
        self.backend.no_padding()
        self._token_text = TokenText(self.backend)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load `tokenizer.json`, `tokenizer_config.json` and the chat template. Raises FileNotFoundError."""
        path = Path(folder)
        if not (path / "tokenizer.json").exists():
            raise FileNotFoundError(f"{path / 'tokenizer.json'} does not exist")
        return cls(PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True))

    @property
    def vocab_size(self) -> int:
        """Number of ids that mean something, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def render_chat(self, messages: list[Message]) -> str:
        """The model's prompt for a conversation, ending where the assistant is to speak.

        Raises InvalidRequest(param="messages") when the template refuses them.
        """
        if not self._fast.chat_template:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        try:
            return str(self._fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidRequest(f"The chat template refuses these messages: {error}", param="messages") from None

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """Token ids of `render_chat`; the template itself writes the special tokens."""
        return self._encode(self.render_chat(messages), add_special_tokens=False)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the tokenizer puts around one (such as BOS)."""
        return self._encode(text, add_special_tokens=True)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which need not be whole characters."""
        return self._token_text.to_bytes(token_id)

    def decode(self, token_ids: list[int]) -> str:
        """The text of ids in one go, special tokens left out."""
        return str(self.backend.decode(token_ids, skip_special_tokens=True))

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # The batch calls release the interpreter lock; the fast one leaves out offsets, which nobody reads.
        encoding = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        return list(encoding.ids)
