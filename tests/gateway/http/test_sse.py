"""An event is one line for every client, also for clients that end lines at more characters than the standard does."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.sse import TextEvent, event


class _Event(msgspec.Struct):
    text: str
    number: int = 1


ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""All characters at which `str.splitlines` splits."""


@given(st.text(st.one_of(st.sampled_from(ENDS), st.characters(exclude_categories=["Cs"])), max_size=40))
def test_an_event_is_one_line_and_says_what_it_said(text: str) -> None:
    for encoded in (event(_Event(text)), TextEvent(_Event(""), "text")(text)):
        line, end = encoded.decode().splitlines()
        assert (json.loads(line.removeprefix("data: ")), end) == ({"text": text, "number": 1}, "")
