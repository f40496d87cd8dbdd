"""Text that comes piece by piece equals the text that comes at once, cut before the first stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.errors import InvalidRequest
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer
from tests.gateway.model_folder import make_model_folder


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(make_model_folder(tmp_path_factory.mktemp("tokenizer") / "model"))


TEXTS = st.text(st.sampled_from("abco stp日本🦜👩‍👩‍👧é\n\ufffd"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("abcostp🦜"), min_size=1, max_size=4), max_size=4).map(tuple)


def shown(tokenizer: Tokenizer, chunks: list[list[int]], stop: tuple[str, ...] = ()) -> tuple[str, bool, int]:
    """Decode ids in these chunks. Return the text, whether a stop string was found, and the number of kept tokens."""
    detokenizer = Detokenizer(tokenizer, stop)
    text = ""
    for chunk in chunks:
        text += detokenizer.push(chunk)
    text += detokenizer.finish()
    return text, detokenizer.finished, detokenizer.num_tokens


def split_ids(ids: list[int], sizes: list[int]) -> list[list[int]]:
    chunks = []
    for size in sizes:
        chunks, ids = [*chunks, ids[:size]], ids[size:]
    return [*chunks, ids]


def cut(text: str, stop: tuple[str, ...]) -> str | None:
    """Return the text before the stop string that is complete first, found by trying every length; None for none."""
    for end in range(1, len(text) + 1):
        starts = [end - len(word) for word in stop if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)]
    return None


@given(ids=st.lists(st.integers(0, 301), max_size=40), sizes=st.lists(st.integers(0, 5), max_size=10))
@settings(deadline=None)
def test_any_ids_in_any_chunks_give_the_one_shot_text(tokenizer: Tokenizer, ids: list[int], sizes: list[int]):
    assert shown(tokenizer, split_ids(ids, sizes))[0] == tokenizer.decode(ids)


@given(text=TEXTS, stop=STOPS, sizes=st.lists(st.integers(0, 5), max_size=10))
@settings(deadline=None)
def test_stop_strings_cut_where_a_search_of_the_whole_text_would(tokenizer, text, stop, sizes):
    ids = tokenizer.encode_text(text)
    expected = cut(text, stop)
    got, found, kept = shown(tokenizer, split_ids(ids, sizes), stop)
    assert (got, found) == (text if expected is None else expected, expected is not None)
    if found:
        # The kept tokens complete a stop string, and one fewer would not.
        assert cut(tokenizer.decode(ids[:kept]), stop) == got
        assert cut(tokenizer.decode(ids[: kept - 1]), stop) is None


@given(text=TEXTS)
@settings(deadline=None)
def test_no_piece_shows_half_a_character(tokenizer: Tokenizer, text: str):
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token_id]) for token_id in tokenizer.encode_text(text)]
    assert sum(piece.count("\ufffd") for piece in pieces) <= text.count("\ufffd")


def test_text_that_may_begin_a_stop_string_is_held_back_then_shown(tokenizer: Tokenizer):
    detokenizer = Detokenizer(tokenizer, ("abcd",))
    shown = [detokenizer.push(tokenizer.encode_text(letter)) for letter in "xabcx"]
    assert shown == ["x", "", "", "", "abcx"]
    assert detokenizer.push(tokenizer.encode_text("ab")) == ""
    assert detokenizer.finish() == "ab"


def test_no_stop_string_is_looked_for_within_min_tokens(tokenizer: Tokenizer):
    detokenizer = Detokenizer(tokenizer, ("b",), min_tokens=3)
    assert "".join(detokenizer.push(tokenizer.encode_text(letter)) for letter in "abcab") == "abca"
    assert (detokenizer.finished, detokenizer.num_tokens) == (True, 5)


def test_special_tokens_are_never_shown(tokenizer: Tokenizer):
    end = tokenizer.backend.token_to_id("<|im_end|>")
    assert shown(tokenizer, [[*tokenizer.encode_text("a"), end], [end]])[0] == "a"


def test_the_chat_template_decides_the_prompt(tokenizer: Tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.render_chat(messages)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode_text(rendered, add_special_tokens=False)[0] == tokenizer.backend.token_to_id("<|im_start|>")
    with pytest.raises(InvalidRequest, match="the template refuses") as refused:
        tokenizer.render_chat([{"role": "user", "content": "refuse me"}])
    assert refused.value.param == "messages"
