"""The operator's log has a server's error text: short, on one line, without keys and the client's words."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.backends.base import Unanswered
from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.errors import ECHO_CHARS, MAX_SHOWN_CHARS, log_text
from gateway.backends.foreign.server import AddressOf, Server
from tests.gateway.backends.foreign.backends import FAST, NAME, anywhere, asking, backend_of, collect, until
from tests.gateway.backends.foreign.fake import (
    END,
    HEAD,
    Answer,
    FakeServer,
    Received,
    event,
    fake_server,
    refusing,
    sending,
)
from tests.gateway.backends.scripted import ListSink
from tests.patience import PATIENCE_S

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
            await collect(backend, asking())
        caught.value.settle()
    (line,) = lines
    assert line["event"] == logged
    assert (line["pool"], line["replica"], line["request_id"]) == (NAME.pool, NAME.replica, "req_1")
    assert "rank 64 is too high for [key], or Bearer [key]" in line["server_text"]
    assert "rank 64" not in caught.value.error.message, "clients get our words"


async def test_a_server_without_the_wanted_model_is_logged_once(server: FakeServer) -> None:
    settings = msgspec.structs.replace(FAST, served_model="wanted")
    server.models = [{"id": f"model-\x1b[31m{number}"} for number in range(5)]
    with capture_logs() as lines:
        async with backend_of(server.url, ListSink(), settings=settings, waits=False) as backend:
            named = "the model 'wanted', but 'model-[31m0', 'model-[31m1', 'model-[31m2', others"
            await until(lambda: backend.health().reason.endswith(f"it does not list {named}"))
            await until(lambda: len(lines) > 0)
    assert [(each["event"], each["pool"]) for each in lines] == [("server_not_ready", NAME.pool)]


async def test_a_server_of_another_kind_or_path_is_told_from_one_that_is_busy(server: FakeServer) -> None:
    server.answer_to_questions = refusing(404)
    async with backend_of(server.url, ListSink(), waits=False) as backend:
        await until(lambda: "status 404; is it a server of the pool's engine" in backend.health().reason)
        server.answer_to_questions = refusing(503)
        await until(lambda: backend.health().reason.endswith("status 503"))


async def test_a_server_that_was_asked_and_is_silent_is_said_not_to_have_answered(server: FakeServer) -> None:
    async def wait(received: Received, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    asked = asyncio.Event()
    server.answer_to_questions = wait
    async with backend_of(server.url, ListSink(), waits=False) as backend:
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        assert backend.health().reason == "the server has not answered yet"


async def test_a_connection_that_cannot_be_opened_is_explained(server: FakeServer) -> None:
    async def nowhere(url: str) -> str:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def nobody_answers(url: str) -> str:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def why(url: str, address_of: AddressOf = anywhere, connect_s: float = PATIENCE_S) -> str:
        asked = Server(url, address_of, ssl.create_default_context, connect_s=connect_s)
        with pytest.raises(ServerGone) as caught:
            await asked.ask_whole("GET", "/v1/models", within_s=PATIENCE_S)
        return str(caught.value)

    assert await why("http://nobody.invalid", nowhere) == "no connection: the name of its host has no address"
    words = "no connection: the name of its host could not be looked up just now, try again later"
    assert await why("http://nobody.invalid", nobody_answers) == words
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as plain:
        url = f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}"
        assert await why(url) == "no connection: no TLS, which the URL's https:// asks for"
    words = "it does not accept a connection with TLS, as the URL's https:// asks for, in time"
    assert await why(server.url.replace("http", "https"), connect_s=0.05) == words
    server.leave_port()
    assert await why(server.url) == "no connection: nothing listens at its address (connection refused)"


def test_a_text_is_short_and_on_one_line() -> None:
    assert log_text("a\r\nb\x1b[31mc\u2028d") == "a  b [31mc d"
    assert len(log_text("x" * 10_000)) == MAX_SHOWN_CHARS + 3


def test_the_words_of_the_client_are_left_out() -> None:
    prompt = "My name is Erika Mustermann and I was born in Berlin"
    body = msgspec.json.encode({"messages": [{"role": "user", "content": prompt}]})
    text = log_text(f'Input should be a list, input_value="{prompt}", input_type=str', request=body)
    assert text == "Input should be a list, input_value=[of the request], input_type=str"
    for start in range(len(prompt) - ECHO_CHARS):
        part = prompt[start : start + ECHO_CHARS]
        assert part not in log_text(f"{'.' * start}{part}!", request=body)
    assert log_text("max_tokens is too large", request=body) == "max_tokens is too large"
