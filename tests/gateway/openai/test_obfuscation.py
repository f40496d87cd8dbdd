"""With `include_obfuscation`, events of different texts have one size, and say the same as without."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.openai.shared.obfuscation import WIDTH
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S, TRIES

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a the quick lazy dog, hello € 💥"}]}
TEXT: dict[str, Any] = {"prompt": "a the quick lazy dog, hello € 💥"}


def stream_events(house: House, path: str, body: dict[str, Any], **options: bool) -> list[bytes]:
    asked = {"model": "tiny", "max_tokens": 24, "stream": True, "stream_options": options, **body}
    reply = httpx.post(
        house.url + path, json=asked, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    )
    assert reply.status_code == 200, reply.text
    *events, done, rest = reply.content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return events


def choices_of(events: list[bytes]) -> list[Any]:
    return [msgspec.json.decode(event.removeprefix(b"data: "))["choices"] for event in events]


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_sizes_do_not_tell_the_lengths_of_texts(house: House, path: str, body: dict[str, Any]) -> None:
    for _ in range(TRIES):  # a gateway that is late says several tokens in one event
        plain = stream_events(house, path, body)
        padded = stream_events(house, path, body, include_obfuscation=True)
        if choices_of(plain) == choices_of(padded):
            break
    assert len({len(event) for event in plain[1:-1]}) > 2, "without padding they do"
    # The role that a chat begins with is told by more than a text is; the end says why.
    assert len({len(event) for event in padded[1:-1]}) == 1
    for event, original in zip(padded, plain, strict=True):
        shown, expected = (msgspec.json.decode(each.removeprefix(b"data: ")) for each in (event, original))
        assert 1 <= len(shown.pop("obfuscation")) <= WIDTH
        assert shown["choices"] == expected["choices"]


def test_the_padding_is_never_the_same(house: House) -> None:
    body = {"prompt": "aaaa"}
    padding = [
        msgspec.json.decode(event.removeprefix(b"data: "))["obfuscation"]
        for event in stream_events(house, "/v1/completions", body, include_obfuscation=True)
    ]
    assert len(set(padding)) == len(padding)


def test_a_padded_stream_has_its_usage(house: House) -> None:
    events = stream_events(house, "/v1/completions", {"prompt": "aaaa"}, include_obfuscation=True, include_usage=True)
    shown = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
    assert [each["usage"] is None for each in shown] == [True] * (len(shown) - 1) + [False]
    assert all(each["obfuscation"] for each in shown)
