"""Every name of uvicorn's protocol that ours relies on means what ours takes it to mean.

None of them is documented. A new minor version of uvicorn that changes one fails here, by name.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.http import server, uvicorn_server
from gateway.http.protocol import connection, replies
from gateway.http.protocol.replies import LastWrites, with_fitted_replies
from tests.patience import PATIENCE_S

HEAD = b"POST /path HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that records the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_reading_paused = self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


class Place:
    """Uvicorn's protocol on a recording transport, with an application that answers when told to."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.messages: list[dict[str, Any]] = [
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
            {"type": "http.response.body", "body": b"ok"},
        ]
        self.events: list[str] = []
        config = uvicorn.Config(self.app, log_config=None, lifespan="off", interface="asgi3")
        self.protocol: Any = _Noted(self.events, config=config, server_state=ServerState(), app_state={"kept": 1})
        self.wire: Any = Wire()
        self.protocol.connection_made(self.wire)

    async def app(self, scope: Any, receive: Any, send: Callable[..., Any]) -> None:
        await self.answer.wait()
        for message in self.messages:
            await send(message)

    async def reply(self) -> None:
        """Let the application answer the running request."""
        self.answer.set()
        await asyncio.gather(*self.protocol.tasks)
        self.answer.clear()


class _Noted(HttpToolsProtocol):
    """Uvicorn's protocol, which records the calls of methods that ours overrides."""

    def __init__(self, events: list[str], **of_uvicorn: Any) -> None:
        self._events = events
        super().__init__(**of_uvicorn)

    max_headers = 2

    def on_message_begin(self) -> None:
        self._events.append("begin")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._events.append(f"head of {len(self.headers)} headers for {self.url.decode()}")
        if len(self.headers) > self.max_headers:
            raise ValueError("too many")
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._events.append(f"header {name.decode().lower()}")
        super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._events.append("chunk")

    def on_body(self, body: bytes) -> None:
        self._events.append(f"content of {len(body)} bytes")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._events.append("whole request")
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._events.append("reply")
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._events.append("no HTTP")
        super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._events.append("start")
        super()._start_asgi_task(cycle, app)


@pytest.fixture
async def place() -> Place:
    return Place()


async def test_url_and_headers_are_whole_at_on_headers_complete_before_start_asgi_task(
    place: Place,
) -> None:
    place.protocol.data_received(HEAD[:8])
    place.protocol.data_received(HEAD[8:])
    headers = ["header host", "header content-length"]
    assert place.events == ["begin", *headers, "head of 2 headers for /path", "start"]
    assert dict(place.protocol.headers) == {b"host": b"x", b"content-length": b"4"}
    await place.reply()


async def test_an_exception_in_on_headers_complete_becomes_send_400_response_and_no_request(place: Place) -> None:
    place.protocol.max_headers = 1
    place.protocol.data_received(HEAD)
    assert place.events[-1] == "no HTTP"
    assert place.protocol.cycle is None and not place.protocol.tasks


async def test_send_400_response_is_called_for_what_is_no_http(place: Place) -> None:
    place.protocol.data_received(b"hello\r\n\r\n")
    assert place.events[-1] == "no HTTP"


async def test_cycle_is_none_until_a_head_is_whole_and_then_the_last_request(place: Place) -> None:
    place.protocol.data_received(HEAD[:-1])
    assert place.protocol.cycle is None
    place.protocol.data_received(HEAD[-1:] + b"body")
    first = place.protocol.cycle
    place.protocol.data_received(HEAD)
    assert place.protocol.cycle is not first, "also where it has to wait for the reply to the first"
    await place.reply()
    await place.reply()


async def test_more_body_is_true_until_on_message_complete(place: Place) -> None:
    place.protocol.data_received(HEAD + b"bod")
    assert place.protocol.cycle.more_body
    place.protocol.data_received(b"y")
    assert not place.protocol.cycle.more_body
    assert place.events[-1] == "whole request"
    await place.reply()


async def test_response_started_and_response_complete_follow_the_reply(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    cycle = place.protocol.cycle
    assert not cycle.response_started and not cycle.response_complete
    await cycle.send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    assert cycle.response_started and not cycle.response_complete
    await cycle.send({"type": "http.response.body", "body": b"ok"})
    assert cycle.response_complete
    assert place.events[-1] == "reply", "on_response_complete is called once response_complete is true"
    for task in place.protocol.tasks:
        task.cancel()


async def test_a_body_after_the_reply_reaches_on_message_complete_and_leaves_more_body_as_it_was(place: Place) -> None:
    place.protocol.data_received(HEAD)
    await place.reply()
    assert place.protocol.cycle.more_body
    place.protocol.data_received(b"body")
    assert place.events[-3:] == ["reply", "content of 4 bytes", "whole request"]
    assert place.protocol.cycle.more_body, "ours sets it: once uvicorn does, that line can go"


async def test_scope_has_the_version_and_a_copy_of_the_state(place: Place) -> None:
    place.protocol.data_received(HEAD.replace(b"1.1", b"1.0") + b"body")
    scope: Any = place.protocol.cycle.scope
    assert (scope["http_version"], scope["state"]) == ("1.0", {"kept": 1})
    await place.reply()


async def test_parser_is_httptools_and_tells_methods_versions_and_offers_to_on_header_and_on_body(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    assert place.events[1:3] == ["header host", "header content-length"] and "content of 4 bytes" in place.events
    parser = place.protocol.parser
    assert (parser.get_method(), parser.get_http_version(), parser.should_upgrade()) == (b"POST", "1.1", False)
    offer = HEAD.replace(b"host: x", b"host: x\r\nconnection: upgrade\r\nupgrade: x")
    await place.reply()
    place.protocol.max_headers = 4
    with pytest.raises(httptools.HttpParserUpgrade) as raised:
        parser.feed_data(offer + b"body")
    assert raised.value.args == (len(offer),), "the place at which the head ends, and `_parse` goes on"
    assert parser.should_upgrade() and place.events[-1] == "whole request", "whose body is left out"
    await place.reply()


async def test_parser_ignores_bytes_behind_the_last_request(place: Place) -> None:
    place.protocol.data_received(HEAD.replace(b"host: x", b"connection: close") + b"body" + b"anything")
    assert place.events[-2:] == ["content of 4 bytes", "whole request"]
    await place.reply()


async def test_on_chunk_header_is_called_and_trailers_come_to_on_header(place: Place) -> None:
    head = HEAD.replace(b"content-length: 4", b"transfer-encoding: chunked")
    place.protocol.data_received(head + b"4\r\nbody\r\n0\r\ntrailer: x\r\n\r\n")
    place.events.remove("start")
    assert place.events[-5:] == ["chunk", "content of 4 bytes", "chunk", "header trailer", "whole request"]
    await place.reply()


async def test_pipeline_has_the_requests_behind_the_one_that_runs(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    assert not place.protocol.pipeline
    place.protocol.data_received(HEAD + b"body")
    assert len(place.protocol.pipeline) == 1
    await place.reply()
    assert not place.protocol.pipeline
    await place.reply()


async def test_on_response_complete_resumes_reading_and_begins_the_next_request_of_the_pipeline(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    place.protocol.data_received(HEAD + b"body")
    assert place.protocol.flow.read_paused and place.events.count("start") == 1
    ((cycle, _),) = place.protocol.pipeline
    await place.reply()
    await place.reply()
    assert place.events.count("start") == 2
    assert cycle.response_complete and not place.protocol.flow.read_paused


def _sent_quickly(cycle: RequestResponseCycle, message: dict[str, Any]) -> Any:
    """Return the result of a reply's message that is sent as the connection lets applications send."""
    return with_fitted_replies(cycle, lambda scope, receive, send: send(message))(None, None, None)


@pytest.mark.parametrize("headers", [[(b"content-length", b"2")], [(b"x-one", b"1"), (b"x-two", b"a\tb \xe9")]])
async def test_a_quick_head_is_that_of_default_headers_and_status_line_and_begins_the_reply_as_uvicorns(
    headers: list[tuple[bytes, bytes]],
) -> None:
    states = []
    for is_quick in (False, True):
        place = Place()
        place.protocol.server_state.default_headers = [(b"date", b"now")]
        place.protocol.data_received(HEAD + b"body")
        cycle, message = place.protocol.cycle, {"type": "http.response.start", "status": 200, "headers": headers}
        await (_sent_quickly(cycle, message) if is_quick else cycle.send(message))
        state = (cycle.response_started, cycle.chunked_encoding, cycle.expected_content_length, cycle.keep_alive)
        states.append((place.wire.written, state, cycle.waiting_for_100_continue))
        place.messages.pop(0)
        await place.reply()
    assert states[0] == states[1] and b"200 OK\r\ndate: now\r\n" in states[0][0]


@pytest.mark.parametrize("value", [b"1\r\nx-other: 2", b"1\n", b"1\rx", b"\x00", b"\x7f"])
async def test_a_value_that_is_no_text_is_refused(place: Place, value: bytes) -> None:
    place.protocol.data_received(HEAD + b"body")
    cycle = place.protocol.cycle
    message = {"type": "http.response.start", "status": 200, "headers": [(b"x-one", value)]}
    with pytest.raises(RuntimeError, match="Invalid HTTP header value"):
        await _sent_quickly(cycle, message)
    assert place.wire.written == b""
    for task in place.protocol.tasks:
        task.cancel()


async def test_the_transport_of_a_cycle_is_written_to_asked_and_closed_and_nothing_else(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    cycle, events = place.protocol.cycle, place.events
    cycle.transport = LastWrites(place.wire, lambda: events.append("close"))
    cycle.keep_alive = False
    await place.reply()
    assert place.wire.written.endswith(b"ok") and not place.wire.is_closed
    assert events[-2:] == ["close", "reply"]


async def test_disconnected_and_message_event_end_what_waits_and_no_reply_is_sent(place: Place) -> None:
    place.protocol.data_received(HEAD)
    cycle = place.protocol.cycle
    cycle.disconnected = True
    cycle.message_event.set()
    assert await cycle.receive() == {"type": "http.disconnect"}
    await place.reply()
    assert place.wire.written == b""


async def test_waiting_for_100_continue_is_true_until_the_body_is_asked_for(place: Place) -> None:
    place.protocol.max_headers = 3
    expecting = HEAD.replace(b"host: x", b"host: x\r\nexpect: 100-continue")
    place.protocol.data_received(expecting)
    cycle = place.protocol.cycle
    assert cycle.waiting_for_100_continue
    place.protocol.data_received(b"body")
    await cycle.receive()
    assert not cycle.waiting_for_100_continue and b" 100 Continue" in place.wire.written
    await place.reply()


async def test_keep_alive_false_ends_the_connection_after_the_reply(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    place.protocol.cycle.keep_alive = False
    await place.reply()
    assert place.wire.is_closed and b"connection: close\r\n" in place.wire.written


async def test_chunked_encoding_false_and_expected_content_length_let_a_reply_have_neither_length_nor_chunks(
    place: Place,
) -> None:
    place.protocol.data_received(HEAD + b"body")
    cycle = place.protocol.cycle
    cycle.chunked_encoding = False
    cycle.expected_content_length = 0
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    for part, more in ((b"some", True), (b"more", True), (b"", False)):
        cycle.expected_content_length = len(part)
        await cycle.send({"type": "http.response.body", "body": part, "more_body": more})
    head, _, body = place.wire.written.partition(b"\r\n\r\n")
    assert body == b"somemore" and b"transfer-encoding" not in head
    for task in place.protocol.tasks:
        task.cancel()


async def test_write_paused_follows_pause_writing_and_resume_writing(place: Place) -> None:
    place.protocol.pause_writing()
    assert place.protocol.flow.write_paused
    place.protocol.resume_writing()
    assert not place.protocol.flow.write_paused


async def test_read_paused_is_true_while_a_body_waits_for_its_request(place: Place) -> None:
    place.protocol.data_received(HEAD.replace(b"4\r\n", b"1000000\r\n") + b"x" * 100_000)
    assert place.protocol.flow.read_paused and place.wire.is_reading_paused
    await place.protocol.cycle.receive()
    assert not place.protocol.flow.read_paused and not place.wire.is_reading_paused
    await place.reply()


async def test_client_is_an_address_and_a_port_or_none(place: Place) -> None:
    assert place.protocol.client is None, "this wire has none"

    class Named(Wire):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ("192.0.2.1", 1234) if name == "peername" else default

    place.protocol.connection_made(Named())
    assert place.protocol.client == ("192.0.2.1", 1234)


async def test_loop_and_transport_are_those_of_the_connection(place: Place) -> None:
    assert place.protocol.loop is asyncio.get_running_loop()
    assert place.protocol.transport is place.wire


async def test_shutdown_closes_an_idle_connection_and_lets_a_request_end(place: Place) -> None:
    place.protocol.data_received(HEAD + b"body")
    place.protocol.shutdown()
    assert not place.wire.is_closed
    await place.reply()
    assert place.wire.is_closed
    idle = Place()
    idle.protocol.shutdown()
    assert idle.wire.is_closed


async def test_connection_lost_ends_what_waits_and_leaves_the_request_incomplete(place: Place) -> None:
    place.protocol.data_received(HEAD)
    place.protocol.connection_lost(None)
    assert await place.protocol.cycle.receive() == {"type": "http.disconnect"}
    assert not place.protocol.cycle.response_complete
    await place.reply()


async def test_should_exit_is_what_on_tick_returns_and_shutdown_comes_after_main_loop() -> None:
    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            calls.append("capture_signals")
            yield

        async def main_loop(self) -> None:
            calls.append(f"main_loop, should_exit {await self.on_tick(0)}")
            self.should_exit = True
            calls.append(f"then {await self.on_tick(0)}")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            calls.append("shutdown")
            await super().shutdown(sockets)

    calls: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(Place().app, log_config=None, lifespan="off"))
    await server.serve([listener])
    assert calls == ["capture_signals", "main_loop, should_exit False", "then True", "shutdown"]


async def test_connections_of_server_state_are_the_protocols(place: Place) -> None:
    assert place.protocol.server_state.connections == {place.protocol}
    place.protocol.connection_lost(None)
    assert not place.protocol.server_state.connections


async def test_handle_exit_sets_should_exit() -> None:
    server = uvicorn.Server(uvicorn.Config(Place().app, log_config=None, lifespan="off"))
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit


async def test_force_exit_ends_the_wait_of_shutdown_for_requests(place: Place) -> None:
    server = uvicorn.Server(uvicorn.Config(place.app, log_config=None, lifespan="off"))
    server.server_state.connections.add(place.protocol)
    place.protocol.data_received(HEAD)
    server.should_exit = server.force_exit = True
    async with asyncio.timeout(PATIENCE_S):
        await server.serve([socket.create_server(("127.0.0.1", 0))])
    await place.reply()


@pytest.mark.parametrize("module", [connection, replies, server, uvicorn_server])
async def test_no_name_of_uvicorn_is_used_without_a_test(place: Place, module: ModuleType) -> None:
    place.protocol.data_received(HEAD)
    server = uvicorn.Server(place.protocol.config)
    owners = (place.protocol, place.protocol.cycle, place.protocol.flow, server, server.server_state)
    uvicorns = {name for owner in owners for name in dir(owner) if not name.startswith("__")}
    tested = _names_in(sys.modules[__name__])
    assert _names_in(module) & uvicorns - tested == set()
    await place.reply()


def _names_in(module: ModuleType) -> set[str]:
    """Return the names of attributes and of methods in a module's source."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
    methods = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return methods | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
