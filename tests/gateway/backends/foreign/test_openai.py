"""A server with OpenAI's protocol answers as a backend: text, calls, ends, errors, and each attempt recorded once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from engine.protocol import Grammar
from gateway.backends.base import Unanswered
from gateway.backends.foreign.connection import READ_BYTES
from gateway.backends.foreign.model import OpaqueModel
from gateway.domain.errors import BackendFailed, InvalidRequest, Overloaded, ShuttingDown
from gateway.text.tools.tool import Tool, ToolUse
from tests.gateway.backends.foreign.backends import FAST, Collected, asking, backend_of, collect, until, until_ready
from tests.gateway.backends.foreign.fake import (
    END,
    HEAD,
    FakeServer,
    Received,
    delta,
    event,
    fake_server,
    refusing,
    saying,
    sending,
    usage,
)
from tests.gateway.backends.scripted import ListSink

WEATHER = Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}}, "tools[0]")
TOOLS = ToolUse((WEATHER,), frozenset({"weather"}))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


async def test_text_comes_as_it_is_made_and_the_servers_counts_are_recorded(server: FakeServer, sink: ListSink) -> None:
    async with backend_of(server.url, sink) as backend:
        collected = await collect(backend, asking())
    assert (collected.text, collected.finish_reasons) == ("Hello world", ["stop"])
    (record,) = sink.records
    assert record.usage == collected.usage
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.finish_reason) == (9, 2, "stop")
    assert sink.sources == [backend], "no other count will come: the reservation ends"
    assert sink.counts[-1].completion_tokens == 3, "what a client may have seen is noted before: 11 bytes, by four"


async def test_the_request_says_what_was_asked_and_nothing_of_the_client(server: FakeServer, sink: ListSink) -> None:
    asked = asking(max_tokens=7, n=2, stop=("END",), temperature=0.5, seed=3, presence_penalty=1.0)
    server.answer = sending(
        HEAD, event(delta("a")), event(delta("b", index=1)), event(delta("", finish="stop")),
        event(delta("", index=1, finish="length")), event(usage(9, 2)), event("[DONE]"), END,
    )  # fmt: skip
    async with backend_of(server.url, sink, key="sk-secret") as backend:
        collected = await collect(backend, asked)
    (received,) = server.received
    assert received.path == "/v1/chat/completions"
    assert received.body == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "n": 2,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 3,
        "presence_penalty": 1.0,
    }
    assert received.headers["authorization"] == "Bearer sk-secret"
    assert received.headers["x-request-id"] == "req_1"
    assert received.headers["accept-encoding"] == "identity"
    assert sorted(collected.finish_reasons) == ["length", "stop"]
    assert sink.records[0].finish_reason == "length"


async def test_a_schema_and_tools_go_to_the_server_and_calls_come_back(server: FakeServer, sink: ListSink) -> None:
    def call(**function: str) -> dict[str, object]:
        return delta("", tool_calls=[{"index": 0, "id": "theirs", "function": function}])

    server.answer = sending(
        HEAD, event(call(name="weather", arguments="")), event(call(arguments='{"city"')),
        event(call(arguments=': 1}')), event(delta("", finish="tool_calls")), event(usage(40, 9)), event("[DONE]"), END,
    )  # fmt: skip
    async with backend_of(server.url, sink) as backend:
        collected = await collect(backend, asking(tools=msgspec.structs.replace(TOOLS, must_call=True, max_calls=1)))
        calls = [call for piece in collected.pieces for call in piece.calls]
        assert [(each.index, each.name, each.arguments) for each in calls] == [
            (0, "weather", ""),
            (0, None, '{"city"'),
            (0, None, ": 1}"),
        ]
        assert collected.finish_reasons == ["stop"]
        body = server.received[0].body
        assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        assert body["parallel_tool_calls"] is False
        server.answer = saying("{}")
        await collect(backend, asking(request_id="req_2", grammar=Grammar("json_schema", '{"type":"object"}')))
        assert server.received[1].body["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_reasoning_within_a_call_is_left_out(server: FakeServer, sink: ListSink) -> None:
    def call(**function: str) -> bytes:
        return event(delta("", tool_calls=[{"index": 0, "function": function}]))

    server.answer = sending(
        HEAD, event(delta("", reasoning="Why?")), call(name="weather", arguments='{"city"'),
        event(delta("", reasoning="Hm.")), call(arguments=": 1}"), event(delta("", finish="tool_calls")),
        event("[DONE]"), END,
    )  # fmt: skip
    async with backend_of(server.url, sink) as backend:
        collected = await collect(backend, asking(tools=TOOLS))
    assert "".join(piece.reasoning for piece in collected.pieces) == "Why?"
    calls = [call for piece in collected.pieces for call in piece.calls]
    assert "".join(each.arguments for each in calls) == '{"city": 1}'


async def test_a_stop_string_that_the_server_passes_over_ends_the_reply_here(
    server: FakeServer, sink: ListSink
) -> None:
    server.answer = saying("one ", "EN", "D two", *["more"] * 50, counts=(9, 53), pause_s=0.01)
    async with backend_of(server.url, sink) as backend:
        collected = await collect(backend, asking(stop=("END",), max_tokens=60))
    assert (collected.text, collected.finish_reasons) == ("one ", ["stop"])
    (record,) = sink.records
    assert record.usage.completion_tokens == 3, "the parts up to the one that completed the stop string"


async def test_a_client_that_leaves_cuts_the_server_off_and_pays_what_came(server: FakeServer, sink: ListSink) -> None:
    server.answer = saying(*["word "] * 1000, counts=(9, 1000), pause_s=0.01)
    async with backend_of(server.url, sink) as backend:
        async with aclosing(backend.generate(asking(max_tokens=1000))) as items:
            num_seen = 0
            async for item in items:
                num_seen += len(item) if isinstance(item, list) else 0
                if num_seen >= 5:
                    break
        (record,) = sink.records
        assert (record.finish_reason, record.usage.completion_tokens) == ("abort", 7), "28 bytes, by four"
        assert backend.num_in_flight == 0
        await until(lambda: server.num_cut)
        assert backend.health().ready, "that says nothing about the server"


@pytest.mark.parametrize("counts", [None, (9, 5000), (9, 0), (5000, 3), (0, 3), (-1, 3)], ids=str)
async def test_counts_that_cannot_be_true_are_not_billed(
    server: FakeServer, sink: ListSink, counts: tuple[int, int] | None
) -> None:
    server.answer = saying("some words", " of text", counts=counts)
    async with backend_of(server.url, sink) as backend:
        await collect(backend, asking())
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (11, 5), "42 and 18 bytes, by four"


async def test_reasoning_and_a_system_message_of_the_template_are_billed_as_told(
    server: FakeServer, sink: ListSink
) -> None:
    counts = {
        "prompt_tokens": 200,
        "completion_tokens": 15,
        "completion_tokens_details": {"reasoning_tokens": 14},
    }
    server.answer = sending(
        HEAD, event(delta("a")), event(delta("", finish="stop")), event({"choices": [], "usage": counts}), END
    )
    model = OpaqueModel("f" * 64, FAST)
    bound = model.prepare_chat([{"role": "user", "content": "Say hello."}]).num_tokens
    async with backend_of(server.url, sink) as backend:
        await collect(backend, msgspec.structs.replace(asking(), num_prompt_tokens=bound))
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (200, 15)


async def test_a_usage_that_comes_before_the_text_is_not_taken_for_the_final_usage(
    server: FakeServer, sink: ListSink
) -> None:
    server.answer = sending(
        HEAD,
        event(delta("", role="assistant") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
        + event(delta("word " * 20))
        + event(delta("", finish="stop"))
        + event("[DONE]")
        + END,
    )
    async with backend_of(server.url, sink) as backend:
        await collect(backend, asking(max_tokens=64))
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (9, 25), "100 bytes, by four"


async def test_a_server_that_fails_within_a_reply_is_recorded_as_an_error_and_not_as_an_abort(
    server: FakeServer, sink: ListSink
) -> None:
    server.answer = sending(HEAD, event(delta("word")), event({"error": "out of memory"}), END)
    async with backend_of(server.url, sink) as backend:
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking())
        caught.value.settle()
    (record,) = sink.records
    assert (record.finish_reason, record.usage.completion_tokens) == ("error", 1)


async def test_a_client_that_leaves_before_a_part_has_not_failed(server: FakeServer, sink: ListSink) -> None:
    server.answer = sending(HEAD, then=_answer_nothing)
    async with backend_of(server.url, sink) as backend:
        reading = asyncio.create_task(collect(backend, asking()))
        await until(lambda: server.received)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    (record,) = sink.records
    assert (record.finish_reason, record.usage.completion_tokens) == ("abort", 0)


@pytest.mark.parametrize("num_events", [1, 2000], ids=["all of it read", "more than is read at a time"])
async def test_what_was_read_in_the_turn_in_which_a_client_leaves_is_billed(
    server: FakeServer, sink: ListSink, num_events: int
) -> None:
    goes_on, collected = asyncio.Event(), Collected()

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        await goes_on.wait()
        writer.write(event(delta("word " * 20)) * num_events)
        await _answer_nothing(writer)

    server.answer = answer
    async with backend_of(server.url, sink) as backend:
        reading = asyncio.create_task(collect(backend, asking(max_tokens=1 << 20), collected=collected))
        streams = backend._requests._streams
        await until(lambda: streams and (connection := streams["req_1"]._connection) and connection.status)
        attempt = streams["req_1"].attempt
        goes_on.set()
        while not attempt.has_begun:  # noqa: ASYNC110 - the turn in which it is read, before its reader goes on
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    (record,) = sink.records
    unseen = attempt.num_text_bytes - len(collected.text)
    assert record.finish_reason == "abort"
    assert record.usage.completion_tokens == -(-attempt.num_text_bytes // 4) > 0
    assert unseen == 100 if num_events == 1 else 0 <= unseen <= READ_BYTES
    assert attempt.num_text_bytes < 100 * num_events or num_events == 1, "what waits behind it is not counted"


async def _answer_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_a_server_whose_counts_are_never_true_gets_no_more_requests(server: FakeServer, sink: ListSink) -> None:
    server.answer = saying("text", counts=(9, 5000))
    async with backend_of(server.url, sink) as backend:
        for number in range(10):
            await collect(backend, asking(request_id=f"req_{number}"))
        assert not backend.health().ready
        assert "cannot be true" in backend.health().reason
        assert "cannot be true" in backend.snapshot("theirs").detail
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking(request_id="req_last"))
        assert caught.value.kind == "absent"
        assert "(the server is not ready)" in caught.value.error.message, "tenants get no reasons"
        assert backend.health().detail == "the server is not ready"


SECRET = "sk-theirs at 10.1.2.3: CUDA error in /srv/model"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, InvalidRequest, "failed"),
        (422, InvalidRequest, "failed"),
        (401, BackendFailed, "died"),
        (404, BackendFailed, "died"),
        (429, Overloaded, "full"),
        (503, Overloaded, "full"),
        (500, BackendFailed, "died"),
        (302, BackendFailed, "died"),
    ],
)
async def test_an_error_is_told_in_our_words(
    server: FakeServer, sink: ListSink, status: int, error: type[Exception], kind: str
) -> None:
    body = f'{{"error": {{"message": "{SECRET}"}}}}'
    server.answer = refusing(status, body, "retry-after: 7", "location: /elsewhere")
    async with backend_of(server.url, sink) as backend:
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking())
    assert not sink.records, "the catcher says what is recorded"
    caught.value.settle()
    assert (caught.value.kind, caught.value.was_sent) == (kind, True)
    found = caught.value.error
    assert type(found) is error
    assert SECRET not in str(found.message)
    assert found.retry_after_s == (7.0 if kind == "full" else None)
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.finish_reason) == (0, 0, "error")
    assert len(server.received) == 1, "no redirect is followed, and nothing is tried again here"


async def test_a_prompt_that_is_too_long_for_the_server_is_refused_as_too_long(
    server: FakeServer, sink: ListSink
) -> None:
    server.answer = refusing(400, '{"error": {"message": "x", "code": "context_length_exceeded"}}')
    async with backend_of(server.url, sink) as backend:
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking())
    assert caught.value.error.code == "context_length_exceeded"
    caught.value.supersede()
    assert (len(sink.records), len(sink.superseded_records)) == (0, 1), "another model may answer in its place"


async def test_a_server_that_is_not_there_is_absent_and_comes_back(server: FakeServer, sink: ListSink) -> None:
    async with backend_of(server.url, sink) as backend:
        await server.stop()
        await until_ready(backend, ready=False)
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking())
        assert (caught.value.kind, caught.value.was_sent) == ("absent", False)
        assert str(server.port) not in caught.value.error.message
        assert not sink.dispatched_ids
        await server.start()
        await until_ready(backend)
        assert (await collect(backend, asking())).text == "Hello world"


async def test_a_server_of_another_model_is_not_ready(server: FakeServer, sink: ListSink) -> None:
    settings = msgspec.structs.replace(FAST, served_model="wanted")
    async with backend_of(server.url, sink, settings=settings, waits=False) as backend:
        await asyncio.sleep(0.2)
        assert not backend.health().ready
        server.models.append({"id": "wanted"})
        await until_ready(backend)
        await collect(backend, asking())
    assert server.received[0].body["model"] == "wanted"


async def test_connections_are_used_again_and_one_that_was_closed_meanwhile_costs_nothing(
    server: FakeServer, sink: ListSink
) -> None:
    settings = msgspec.structs.replace(FAST, health_seconds=600.0)
    async with backend_of(server.url, sink, settings=settings) as backend:
        for number in range(5):
            await collect(backend, asking(request_id=f"req_{number}"))
        assert server.num_connections == 1
        await server.stop()
        await server.start()
        assert (await collect(backend, asking(request_id="req_5"))).text == "Hello world"
    assert len(sink.records) == 6


async def test_failures_in_a_row_open_the_breaker_and_one_good_answer_closes_it(
    server: FakeServer, sink: ListSink
) -> None:
    server.answer = refusing(500)
    async with backend_of(server.url, sink) as backend:
        for number in range(5):
            with pytest.raises(Unanswered):
                await collect(backend, asking(request_id=f"req_{number}"))
        assert not backend.health().ready
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking(request_id="req_5"))
        assert caught.value.kind == "absent"
        assert len(server.received) == 5, "the server is left alone"
        server.answer = saying("well", " again")
        await until_ready(backend)
        assert (await collect(backend, asking(request_id="req_6"))).text == "well again"
        assert backend.health().ready


async def test_a_gateway_that_stops_cuts_requests_off_and_records_them(server: FakeServer, sink: ListSink) -> None:
    server.answer = saying(*["word "] * 1000, pause_s=0.01)
    async with backend_of(server.url, sink) as backend:
        collected = Collected()
        reading = asyncio.create_task(collect(backend, asking(max_tokens=1000), collected=collected))
        await until(lambda: collected.text)
        backend.cut_off()
        with pytest.raises(ShuttingDown):
            await reading
        await backend.drain()
        assert [each.finish_reason for each in sink.records] == ["abort"]
        assert sink.records[0].usage.completion_tokens >= len(collected.text) // 5
