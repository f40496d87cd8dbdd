"""The bytes of tokens put together are the text, for both kinds of vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, normalizers

from gateway.text.token_text import TokenText
from gateway.text.tokenizer import Tokenizer
from tests.gateway.model_folder import make_model_folder

TEXTS = ["plain words", "naïve café — 北京", "👩‍🚀 tab\tnewline\n", "\x00\x7f\x80\xad\xff"]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_are_the_text(tmp_path: Path, text: str) -> None:
    tokenizer = Tokenizer.from_folder(make_model_folder(tmp_path))
    ids = tokenizer.encode_text(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(tokenizer.backend.token_to_id("<|im_end|>")) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_sentencepiece_tokens_are_the_text_with_its_first_space() -> None:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "▁hi"]
    vocab = {word: token_id for token_id, word in enumerate(words)}
    backend = BackendTokenizer(models.BPE(vocab, [("▁", "h"), ("▁h", "i")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    token_text = TokenText(backend)
    assert b"".join(map(token_text.to_bytes, backend.encode("hi h€").ids)) == " hi h€".encode()
    assert token_text.to_bytes(vocab["▁hi"]) == b" hi"
