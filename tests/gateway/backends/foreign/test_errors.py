"""The operator's log has a server's error text: short, on one line, without keys and the client's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.backends.base import Unanswered
from gateway.backends.foreign.errors import ECHO_CHARS, MAX_SHOWN_CHARS, shown
from tests.gateway.backends.foreign.backends import FAST, NAME, asking, backend_of, hear, until
from tests.gateway.backends.foreign.fake import END, HEAD, Answer, FakeServer, event, fake_server, refusing, sending
from tests.gateway.backends.scripted import ListSink

KEY = "our-own-key/with-a-slash"
TEXT = f"rank 64 is too high for {KEY}, or Bearer sk-abcdefgh12345678ABCDEFGH"


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.mark.parametrize(
    ("answer", "logged"),
    [
        (refusing(400, json.dumps({"error": {"message": TEXT}})), "request_refused"),
        (refusing(503, json.dumps({"error": {"message": TEXT}})), "server_full"),
        (refusing(500, json.dumps({"error": {"message": TEXT}})), "server_failed"),
        (sending(HEAD, event({"error": {"message": TEXT}}), END), "server_failed"),
    ],
    ids=["refused", "full", "failed", "within a stream"],
)
async def test_an_error_is_logged_with_the_names_that_an_operator_knows(
    server: FakeServer, answer: Answer, logged: str
) -> None:
    server.answer = answer
    async with backend_of(server.url, ListSink(), key=KEY) as backend:
        with capture_logs() as lines, pytest.raises(Unanswered) as caught:
            await hear(backend, asking())
        caught.value.settle()
    (line,) = lines
    assert line["event"] == logged
    assert (line["pool"], line["replica"], line["request_id"]) == (NAME.pool, NAME.replica, "req_1")
    assert "rank 64 is too high for [key], or Bearer [key]" in line["server_text"]
    assert "rank 64" not in caught.value.error.message, "clients get our words"


async def test_a_server_that_refuses_to_be_asked_is_logged_once(server: FakeServer) -> None:
    settings = msgspec.structs.replace(FAST, served_model="wanted")
    with capture_logs() as lines:
        async with backend_of(server.url, ListSink(), settings=settings, waits=False) as backend:
            await until(lambda: "does not list" in backend.health().reason)
            await until(lambda: len(lines) > 0)
    assert [(each["event"], each["pool"]) for each in lines] == [("server_not_ready", NAME.pool)]


def test_a_text_is_short_and_on_one_line() -> None:
    assert shown("a\r\nb\x1b[31mc\u2028d") == "a  b [31mc d"
    assert len(shown("x" * 10_000)) == MAX_SHOWN_CHARS + 3


def test_the_words_of_the_client_are_left_out() -> None:
    prompt = "My name is Erika Mustermann and I was born in Berlin"
    body = msgspec.json.encode({"messages": [{"role": "user", "content": prompt}]})
    text = shown(f'Input should be a list, input_value="{prompt}", input_type=str', request=body)
    assert text == "Input should be a list, input_value=[of the request], input_type=str"
    for start in range(len(prompt) - ECHO_CHARS):
        part = prompt[start : start + ECHO_CHARS]
        assert part not in shown(f"{'.' * start}{part}!", request=body)
    assert shown("max_tokens is too large", request=body) == "max_tokens is too large"
