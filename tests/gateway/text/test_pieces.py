"""A text that is tokenized piece by piece has the token ids of the whole; pieces are cached for each owner, in little
memory."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from gateway.text.pieces import Encode, Pieces
from gateway.text.tokenizer import Tokenizer
from tests.gateway.text.vocabularies import KINDS, byte_level, random_text

SPECIAL = ("<s>", "</s>", "<tool>", "<s", "</s></s>", " <s> ", "<<s>>")


def random_chat(rng: random.Random) -> str:
    """Return random text of all scripts, with whole and broken special tokens in it."""
    return "".join(random_text(rng) + rng.choice(SPECIAL) for _ in range(rng.randint(0, 6))) + random_text(rng)


def encode_whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_text(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_the_pieces_are_those_of_the_whole(kind: str) -> None:
    tokenizer, rng = KINDS[kind](), random.Random(kind)
    texts = [random_chat(rng) for _ in range(300)]
    for text in [*texts, *texts]:  # the second time from memory
        assert tokenizer.encode_chat(text, rng.choice("ab")) == encode_whole(tokenizer, text)


def test_a_tokenizer_that_treats_the_first_piece_otherwise_has_the_same_ids() -> None:
    backend = Backend(models.WordLevel({"▁a": 0, "a": 1, "▁b": 2, "b": 3, "?": 4}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    pieces = Pieces.of(backend, encode_of(backend))
    assert pieces is not None
    for text in ("a<s>a", "<s>b<s>a b", "a b<s>"):
        assert pieces.encode("", text) == backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("options", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
def test_tokens_that_look_around_them_divide_nothing(options: dict[str, bool]) -> None:
    backend = byte_level().backend
    backend.add_special_tokens([AddedToken("<end>", special=True, **options)])
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return encode_of(backend)(texts)

    pieces = Pieces.of(backend, encode)
    assert pieces is not None
    asked.clear()
    text = "a <end> b <s> c"
    assert pieces.encode("", text) == backend.encode(text, add_special_tokens=False).ids
    assert asked == ["a <end> b ", "<s> c"]


def test_a_tokenizer_without_special_tokens_has_no_pieces() -> None:
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    assert Pieces.of(backend, encode_of(backend)) is None


def test_a_turn_is_tokenized_once_for_each_owner() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[len(text)] for text in texts]

    pieces = Pieces(encode, ["|"])
    assert pieces.encode("ann", "a|bb|a|bb") == [1, 3, 2, 3]
    assert pieces.encode("ann", "a|bb|ccc") == [1, 3, 4]
    assert asked == ["a", "|bb", "|a", "|ccc"]
    asked.clear()
    assert pieces.encode("bob", "a|bb") == [1, 3]
    assert asked == ["a", "|bb"]


def test_the_least_recently_used_pieces_go_first() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[1] * 1000 for _ in texts]

    pieces = Pieces(encode, ["|"], max_bytes=10_000)  # two pieces of 4,000 bytes and a little
    for text in ("a", "b", "a", "c", "a", "b"):
        pieces.encode("", text)
    assert asked == ["a", "b", "c", "b"]
    pieces.encode("", "|".join("defghij"))
    assert pieces._num_bytes <= 10_000


def test_threads_share_the_pieces() -> None:
    tokenizer, rng = byte_level(), random.Random(0)
    texts = [random_chat(rng) for _ in range(200)]
    expected = [encode_whole(tokenizer, text) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            assert list(threads.map(lambda text: tokenizer.encode_chat(text, "a"), texts)) == expected


def encode_of(backend: Backend) -> Encode:
    return lambda texts: [each.ids for each in backend.encode_batch(texts, add_special_tokens=False)]
