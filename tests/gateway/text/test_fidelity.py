"""2,000 random sequences of tokens for each kind of tokenizer: the shown pieces, put together, are the text at once."""

from __future__ import annotations

import codecs
import random

import msgspec
import pytest

from engine.protocol import Delta, TokenLogprobs
from gateway.backends.generation import Piece
from gateway.backends.text.choices import Choice, style_after
from gateway.text.options import TextStyle
from gateway.text.tokenizer import Tokenizer
from tests.demo import demo_model_dir
from tests.gateway.text.vocabularies import KINDS, random_ids, random_text, split

NUM_SEQUENCES = 2000
REPLACED = "\ufffd"


@pytest.fixture(scope="module", params=["demo", *KINDS])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "demo":
        return Tokenizer.from_folder(demo_model_dir())
    return KINDS[request.param]()


class Case(msgspec.Struct, frozen=True):
    """A random sequence of tokens."""

    ids: list[int]
    texts: list[str]
    """The text after each number of tokens, beginning with no token. Each text but the last has whole characters alone;
    the last is the text of all tokens."""
    stop: tuple[str, ...]
    min_tokens: int

    def expected(self) -> tuple[str, int | None]:
        """Return the text up to the stop string that is complete first, and the number of tokens up to it.

        Every length is tried after every token. Without a stop string, the whole text and None are returned.
        """
        if self.min_tokens < len(self.ids):
            num_exempt = len(self.texts[self.min_tokens])
            for num_tokens in range(self.min_tokens + 1, len(self.texts)):
                text = self.texts[num_tokens]
                for end in range(num_exempt + 1, len(text) + 1):
                    starts = [end - len(word) for word in self.stop if text[num_exempt:end].endswith(word)]
                    if starts:
                        return text[: min(starts)], num_tokens
        return self.texts[-1], None


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the text after each number of tokens, by the standard library's decoder from the tokens' bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [""]
    for token_id in ids:
        raw = b"" if token_id in tokenizer.special_ids else tokenizer.token_bytes(token_id)
        texts.append(texts[-1] + decoder.decode(raw))
    texts[-1] += decoder.decode(b"", final=True)
    return [text.removeprefix(" ") for text in texts] if tokenizer.strips_first_space else texts


def make_case(rng: random.Random, tokenizer: Tokenizer) -> Case:
    ids = random_ids(rng, tokenizer)
    texts = texts_of(tokenizer, ids)
    text, stop = texts[-1], []
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        start = rng.randrange(len(text) + 1)
        stop.append(text[start : start + rng.randint(1, 5)] if rng.random() < 0.7 else random_text(rng)[:3])
    return Case(ids, texts, tuple(filter(None, stop)), rng.choice((0, 0, 0, 3, len(ids))))


def pieces_of(tokenizer: Tokenizer, case: Case, chunks: list[list[int]], *, with_logprobs: bool) -> list[Piece]:
    choice = Choice(0, tokenizer, case.stop, min_tokens=case.min_tokens)
    pieces, count = [], 0
    for chunk in chunks:
        count += len(chunk)
        logprobs = [TokenLogprobs(-1.0, [], []) for _ in chunk] if with_logprobs else None
        pieces.append(choice.push(Delta("r", chunk, count, logprobs=logprobs)))
    if choice.finish_reason is None:
        pieces.append(choice.end("length"))
    assert choice.num_kept_tokens == case.expected()[1]
    return [piece for piece in pieces if piece is not None]


def test_the_deltas_are_the_text_whatever_the_tokens_and_the_chunks(tokenizer: Tokenizer) -> None:
    rng = random.Random(8)
    num_stopped = num_replaced = 0
    for _ in range(NUM_SEQUENCES):
        case = make_case(rng, tokenizer)
        expected, num_kept = case.expected()
        pieces = pieces_of(tokenizer, case, split(rng, case.ids), with_logprobs=False)
        assert "".join(piece.text for piece in pieces) == expected, case
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop" if num_kept else "length"]
        num_stopped += num_kept is not None
        num_replaced += REPLACED in expected
    assert NUM_SEQUENCES / 5 < num_stopped < NUM_SEQUENCES * 4 / 5
    assert num_replaced > NUM_SEQUENCES / 20


def test_the_text_at_once_is_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    """Byte tokens that are no text differ: the tokenizer replaces whole runs of them, characters already shown
    included."""
    rng = random.Random(9)
    num_compared = 0
    for _ in range(NUM_SEQUENCES):
        ids = random_ids(rng, tokenizer)
        text = texts_of(tokenizer, ids)[-1]
        if not tokenizer.strips_first_space or REPLACED not in text:
            assert text == tokenizer.decode(ids), ids
            num_compared += 1
    assert num_compared > NUM_SEQUENCES / 4


def test_tokens_are_told_once_each_with_where_their_text_begins(tokenizer: Tokenizer) -> None:
    rng = random.Random(10)
    for _ in range(NUM_SEQUENCES // 4):
        case = make_case(rng, tokenizer)
        text, num_kept = case.expected()
        pieces = pieces_of(tokenizer, case, split(rng, case.ids), with_logprobs=True)
        assert "".join(piece.text for piece in pieces) == text, case
        told = [(token.token_id, token.start) for piece in pieces for token in piece.tokens]
        assert told == begun(tokenizer, case, text, num_kept), case


def test_what_follows_a_prompt_is_the_rest_of_the_text(tokenizer: Tokenizer) -> None:
    for text in ("one two", " one  two", "one\n two three"):
        ids = [min(tokenizer.special_ids), *tokenizer.encode_text(text, add_special_tokens=False)]
        for cut in range(1, len(ids)):
            style = style_after(ids[:cut], tokenizer, TextStyle(follows_prompt=True))
            choice = Choice(0, tokenizer, (), min_tokens=0, style=style)
            piece, end = choice.push(Delta("r", ids[cut:], len(ids) - cut)), choice.end("length")
            assert tokenizer.decode(ids[:cut]) + (piece.text if piece else "") + end.text == tokenizer.decode(ids)


def begun(tokenizer: Tokenizer, case: Case, text: str, num_kept: int | None) -> list[tuple[int, int]]:
    """Return the tokens with their start offsets, up to the first one that is not part of the text.

    num_kept: the number of tokens that are part of the text; None: all.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for token_id, before, after in zip(case.ids[:num_kept], case.texts, case.texts[1:], strict=False):
        if token_id not in tokenizer.special_ids:
            decoder.decode(tokenizer.token_bytes(token_id))
        says_nothing = before == after and not decoder.getstate()[0]
        if num_kept is not None and len(before) >= len(text) + says_nothing:
            break
        found.append((token_id, len(before)))
    return found
