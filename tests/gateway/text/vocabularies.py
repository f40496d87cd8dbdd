"""Small tokenizers of each kind that models here have, and random ids whose texts are of all sorts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from gateway.text.tokenizer import Tokenizer

SCRIPTS = (
    "The quick brown fox, naïve café — ",
    "Съешь же ещё этих мягких булок ",
    "ξεσκεπάζω την ψυχοφθόρα βδελυγμία ",
    "نص حكيم له سر قاطع ",
    "דג סקרן שט בים ",
    "ऋषियों को सताने वाले ",
    "เป็นมนุษย์สุดประเสริฐ ",
    "天地玄黃宇宙洪荒 いろはにほへと ",
    "다람쥐 헌 쳇바퀴에 타고파 ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 👍🏽 é̂ ",
    "\x00\t\n\r\x7f\x85\u2028\u200f\ufeff\ufffd\U0010ffff  ",
    "if (x != 0) { return \\u0041; } ",
)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> Tokenizer:
    """Return a byte-level tokenizer, like those of Llama 3 and Qwen."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(backend, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
    return _tokenizer_of(backend)


def sentencepiece() -> Tokenizer:
    """Return a SentencePiece tokenizer of merges, like those of Llama 2 and Mistral."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trained = _train(backend, trainers.BpeTrainer(vocab_size=300, limit_alphabet=60, show_progress=False))
    words = ["<unk>", *BYTE_TOKENS, *trained["vocab"]]
    vocab = {word: number for number, word in enumerate(words)}
    backend.model = models.BPE(vocab, list(map(tuple, trained["merges"])), unk_token="<unk>", byte_fallback=True)
    return _tokenizer_of(backend)


def metaspace() -> Tokenizer:
    """Return a SentencePiece tokenizer of unigrams."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    trained = _train(backend, trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", show_progress=False))
    vocab = [("<unk>", 0.0), *((byte, -20.0) for byte in BYTE_TOKENS)]
    vocab += [(word, score) for word, score in trained["vocab"] if len(word) > 1 or word.isascii() or word == "▁"]
    backend.model = models.Unigram(vocab, unk_id=0, byte_fallback=True)
    return _tokenizer_of(backend)


def _train(backend: Backend, trainer: Any) -> dict[str, Any]:
    """Train a tokenizer; return its content in the form of tokenizer.json."""
    backend.train_from_iterator([script * 3 for script in SCRIPTS], trainer)
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model


def _tokenizer_of(backend: Backend) -> Tokenizer:
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(backend)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
}


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        script = rng.choice(SCRIPTS)
        start = rng.randrange(len(script))
        parts.append(script[start : start + rng.randint(1, 12)])
    return "".join(parts)


def random_ids(rng: random.Random, tokenizer: Tokenizer) -> list[int]:
    """Return random ids: of text of all scripts, some broken, of any tokens, of single bytes, and of special tokens."""
    special = sorted(tokenizer.special_ids)
    ids: list[int] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.45:
            ids += tokenizer.encode_text(random_text(rng))
        elif kind < 0.65:
            torn = tokenizer.encode_text(random_text(rng))
            ids += torn[rng.randrange(len(torn)) :][: rng.randint(1, 6)]
        elif kind < 0.85:
            ids += [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(1, 8))]
        else:
            ids.append(rng.choice(special))
    return ids


def split(rng: random.Random, items: Sequence[int]) -> list[list[int]]:
    """Return the items in order as chunks of random sizes, some of them empty."""
    chunks, rest = [], list(items)
    while rest:
        size = rng.choice((0, 1, 1, 1, 2, 3, 7, len(rest)))
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks
