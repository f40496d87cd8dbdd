"""The bytes of the model's tokens, in llguidance's form."""

from __future__ import annotations

from pathlib import Path

from llguidance import LLTokenizer


class NoVocabulary(ValueError):
    """The error for a model for which no grammar can be enforced; the message has the reason."""


def load_vocabulary(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """Load the vocabulary from `tokenizer.json`.

    Ids from its end to vocab_size are the model's padding and never allowed. Takes about 0.35 s for 49,152 tokens, and
    lets no other thread run meanwhile.

    Raises NoVocabulary: when there is no usable `tokenizer.json`, or the model names no end-of-sequence token.
    """
    try:
        text = (model_dir / "tokenizer.json").read_text()
    except FileNotFoundError:
        raise NoVocabulary("the model has no tokenizer.json") from None
    if not eos_token_ids:
        raise NoVocabulary("the model names no end-of-sequence token")
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids))
    except ValueError as error:
        raise NoVocabulary(f"the model's tokenizer.json can't be used: {error}") from None
