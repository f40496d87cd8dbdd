"""Promises of the engine client whatever the engine does: every request ends, and its usage is recorded once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from engine.config import load_model_config
from engine.protocol import (
    DEAD_AFTER_S,
    HEARTBEAT_INTERVAL_S,
    Abort,
    AckUsage,
    AdapterProbe,
    AdapterStatus,
    ArgumentPieces,
    BatchTerms,
    CallableTool,
    CallGrammar,
    Delta,
    EngineError,
    EngineStats,
    Final,
    GenerateRequest,
    Goodbye,
    Grammar,
    Heartbeat,
    LoadAdapter,
    Refused,
    SamplingParams,
    Service,
    StepOutputs,
    Submit,
    Thinking,
    UnackedUsage,
    Usage,
    UsageRecord,
    encode,
    minor_of,
)
from gateway.backends.base import Unanswered
from gateway.backends.engine.adapter_calls import AdapterCalls
from gateway.backends.engine.backlog import MAX_APART, MAX_UNREAD_BYTES
from gateway.backends.engine.client import EngineBackend
from gateway.backends.engine.failures import not_ready
from gateway.backends.engine.model import EngineModel
from gateway.backends.generation import Generation
from gateway.backends.usage import Count
from gateway.backends.used import UsedAmounts
from gateway.domain.errors import BackendFailed, GatewayError, InvalidRequest, Overloaded, ReadTooSlowly, ShuttingDown
from gateway.text.tokenizer import Tokenizer
from tests.gateway.backends.scripted import ListSink, ScriptedEngine
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S, least


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/e"


@pytest.fixture
async def engine(endpoint: str) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(endpoint)
    yield engine
    engine.close()


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def make_backend(endpoint: str, model_dir: Path, sink: ListSink) -> EngineBackend:
    return EngineBackend(
        endpoint,
        database_id="database",
        model=EngineModel("digest", load_model_config(model_dir), Tokenizer.from_folder(model_dir)),
        sink=sink,
        give_up_s=0.05,
        full_for_s=0.0,
    )


@pytest.fixture
async def backend(endpoint: str, model_dir: Path, sink: ListSink) -> AsyncIterator[EngineBackend]:
    backend = make_backend(endpoint, model_dir, sink)
    backend.start()
    yield backend
    await backend.stop()


def request(request_id: str = "req_1") -> GenerateRequest:
    return GenerateRequest(request_id, [1, 2, 3], SamplingParams(max_tokens=10), tenant="t", meter=b"m")


def final(request_id: str = "req_1", completion: int = 2, reason: str = "length", error: EngineError | None = None):
    return Final(request_id, reason, Usage(prompt_tokens=3, completion_tokens=completion), error)


async def read(backend: EngineBackend, asked: GenerateRequest) -> list[Delta | Final]:
    """Return all deltas and the final of a request; a failure raises its error, as nothing is attempted again."""
    try:
        items = [item async for item in backend.deltas(asked)]
    except Unanswered as failure:
        failure.settle()
        raise failure.error from None
    return [each for item in items for each in (item if isinstance(item, list) else [item])]


async def until(predicate) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not predicate():  # noqa: ASYNC110 - what it asks has no event
            await asyncio.sleep(0.005)


async def make_ready(backend: EngineBackend, engine: ScriptedEngine, **options) -> None:
    await engine.welcome(**options)
    await until(lambda: backend.health().ready)


async def test_a_request_gets_its_deltas_and_final_and_its_usage_is_recorded_once(engine, backend, sink):
    await make_ready(backend, engine)
    reading = asyncio.create_task(read(backend, request()))
    assert (await engine.expect(Submit)).request == request()
    await engine.send(StepOutputs([Delta("req_1", [7], 1)], []))
    await engine.send(StepOutputs([Delta("req_1", [8], 2)], [final()]))
    assert await reading == [Delta("req_1", [7], 1), Delta("req_1", [8], 2), final()]
    assert sink.records == [UsageRecord("req_1", 0, "length", Usage(3, 2), b"m")]
    assert sink.engine_ids == ["engine"]
    await backend.acknowledge([("req_1", 0)])
    assert (await engine.expect(AckUsage)).keys == [("req_1", 0)]


async def test_a_stream_that_nobody_reads_is_aborted_once_too_much_of_it_waits(engine, backend, sink):
    await make_ready(backend, engine)
    items = backend.deltas(request())
    reading = asyncio.create_task(anext(items))
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7], 1)]))
    assert await reading == [Delta("req_1", [7], 1)]
    at_once, num_messages = MAX_UNREAD_BYTES // MAX_APART, MAX_APART + 2  # an id takes a byte
    count = 1
    for _ in range(num_messages):
        count += at_once
        await engine.send(StepOutputs([Delta("req_1", [8] * at_once, count)]))
    assert (await engine.expect(Abort)).request_id == "req_1"
    await engine.send(StepOutputs([], [final(completion=count, reason="abort")]))
    await until(lambda: len(sink.counts) == num_messages + 1)
    kept = [delta async for item in items_until_too_slow(items) for delta in item]
    assert sum(len(delta.token_ids) for delta in kept) <= MAX_UNREAD_BYTES + 2 * at_once
    assert sink.records == [UsageRecord("req_1", 0, "abort", Usage(3, count), b"m")]


async def test_a_second_attempt_at_a_request_waits_until_the_first_has_ended_on_the_engine(engine, backend, sink):
    await make_ready(backend, engine)
    first = backend.deltas(request())
    reading = asyncio.create_task(anext(first))
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7], 1)]))
    await reading
    await first.aclose()
    again = asyncio.create_task(read(backend, msgspec.structs.replace(request(), attempt=1)))
    assert (await engine.expect(Abort)).request_id == "req_1"
    await engine.send(StepOutputs([], [final(completion=1, reason="abort")]))
    assert (await engine.expect(Submit)).request.attempt == 1
    await engine.send(StepOutputs([Delta("req_1", [8], 1)], [final(completion=1)]))
    assert await again == [Delta("req_1", [8], 1), final(completion=1)]
    assert [(each.attempt, each.finish_reason) for each in sink.records] == [(0, "abort"), (1, "length")]


async def items_until_too_slow(items):
    with pytest.raises(ReadTooSlowly):
        async for item in items:
            yield item


class FailingSink(ListSink):
    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        raise MemoryError


async def test_a_request_whose_dispatch_cannot_be_recorded_reaches_no_engine(engine, endpoint, model_dir):
    backend = make_backend(endpoint, model_dir, FailingSink())
    backend.start()
    await make_ready(backend, engine)
    with pytest.raises(MemoryError):
        await read(backend, request())
    await backend.stop()
    await engine.expect(Goodbye)  # and no Submit before it


async def test_without_an_engine_requests_are_refused_and_may_be_repeated(backend):
    with pytest.raises(Overloaded) as refused:
        await read(backend, request())
    assert refused.value.retry_after_s == 1.0
    health = backend.health()
    assert "waiting for an engine" in health.detail
    assert health.endpoint.startswith("ipc://")
    for words in (refused.value.message, health.detail):
        assert "/" not in words, "clients see these, and where the engine is must not be in them"


async def test_a_refused_hello_shows_in_the_health(engine, backend):
    await engine.expect(object)
    await engine.send(Refused("protocol version 1 is not 2"))
    await until(lambda: "protocol version 1 is not 2" in backend.health().detail)
    assert not backend.health().ready


async def test_an_engine_with_another_model_is_not_used(engine, backend):
    await engine.welcome(model_digest="other")
    await until(lambda: "another base model" in backend.health().detail)
    assert not backend.health().ready


async def test_no_more_requests_are_in_flight_than_the_engine_granted(engine, backend):
    await make_ready(backend, engine, credits=1)
    first = asyncio.create_task(read(backend, request("req_1")))
    second = asyncio.create_task(read(backend, request("req_2")))
    assert (await engine.expect(Submit)).request.request_id == "req_1"
    with pytest.raises(TimeoutError):
        await engine.expect(Submit, within_s=0.1)
    await engine.send(StepOutputs([], [final("req_1")]))
    assert (await engine.expect(Submit)).request.request_id == "req_2"
    await engine.send(StepOutputs([], [final("req_2")]))
    await asyncio.gather(first, second)


async def test_leaving_early_aborts_and_still_records_the_usage(engine, backend, sink):
    await make_ready(backend, engine)
    stream = backend.deltas(request())
    first = asyncio.create_task(anext(stream))
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7], 1)], []))
    await first
    await stream.aclose()
    assert (await engine.expect(Abort)).request_id == "req_1"
    await engine.send(StepOutputs([], [final(completion=4, reason="abort")]))
    assert await sink.wait_for(1) == [UsageRecord("req_1", 0, "abort", Usage(3, 4), b"m")]
    assert backend.num_in_flight == 0


async def test_tokens_after_a_stop_string_are_discarded_even_if_the_engine_was_faster(engine, backend, sink):
    await make_ready(backend, engine)
    stream = backend.deltas(request())
    first = asyncio.create_task(anext(stream))
    await engine.expect(Submit)
    ended = final(completion=4)
    usage = msgspec.structs.replace(ended.usage, draft_tokens=5, accepted_draft_tokens=4)
    await engine.send(StepOutputs([Delta("req_1", [7, 8, 9, 9], 4)], [msgspec.structs.replace(ended, usage=usage)]))
    await first
    await backend.stop_at("req_1", 0, 3)
    end = await anext(stream)
    expected = Usage(3, 3, discarded_tokens=1, draft_tokens=5, accepted_draft_tokens=3)
    assert (end.finish_reason, end.usage) == ("stop", expected), "no more of them is accepted than is kept"
    assert [(record.finish_reason, record.usage) for record in sink.records] == [("stop", end.usage)]
    await stream.aclose()
    assert len(sink.records) == 1


async def test_a_choice_that_a_stop_string_ends_is_aborted_alone_and_counts_up_to_it(engine, backend, sink):
    await make_ready(backend, engine)
    asked = msgspec.structs.replace(request(), n=3)
    stream = backend.deltas(asked)
    first = asyncio.create_task(anext(stream))
    await engine.expect(Submit)
    deltas = [Delta("req_1", [7, 8], 2, 0), Delta("req_1", [7, 8, 9, 9], 4, 1, finish_reason="length")]
    await engine.send(StepOutputs(deltas, []))
    assert await first == deltas
    for index, kept in [(0, 1), (1, 3)]:
        await backend.stop_at("req_1", index, kept)
        assert await engine.expect(Abort) == Abort("req_1", kept, index)
    # Choice 0 was cut by the engine; choice 1 had ended before it heard of the stop string; choice 2 ran to its end.
    await engine.send(StepOutputs([Delta("req_1", [7, 8, 9, 9, 9], 5, 2)], [final(completion=1 + 4 + 5)]))
    assert await anext(stream) == [Delta("req_1", [7, 8, 9, 9, 9], 5, 2)]
    end = await anext(stream)
    assert (end.finish_reason, end.usage) == ("length", Usage(3, 1 + 3 + 5, discarded_tokens=1))
    assert [record.usage for record in sink.records] == [end.usage]


async def test_tokens_are_counted_before_anybody_reads_them_and_without_those_after_a_stop(engine, backend, sink):
    await make_ready(backend, engine)
    stream = backend.deltas(msgspec.structs.replace(request(), n=2))
    first = asyncio.create_task(anext(stream))
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7, 8], 2, 0), Delta("req_1", [9], 1, 1)], []))
    await first
    assert sink.counts == [Count("req_1", 0, 3, 2), Count("req_1", 0, 3, 3)]
    await backend.stop_at("req_1", 0, 1)
    await engine.expect(Abort)
    await engine.send(StepOutputs([Delta("req_1", [9], 2, 1)], []))
    await anext(stream)
    assert sink.counts[2:] == [Count("req_1", 0, 3, 1 + 2)]
    await engine.send(StepOutputs([], [final(completion=3)]))
    assert (await anext(stream)).usage == Usage(3, 3)


async def test_a_reader_gets_all_deltas_since_its_last_read_at_once(engine, backend):
    await make_ready(backend, engine)
    stream = backend.deltas(request())
    first = asyncio.create_task(anext(stream))
    await engine.expect(Submit)
    deltas = [Delta("req_1", [7], count) for count in range(1, 5)]
    for delta in deltas[:2]:
        await engine.send(StepOutputs([delta], []))
    await engine.send(Heartbeat(0, EngineStats()))
    seen = await first
    await engine.send(StepOutputs([deltas[2]], []))
    await engine.send(StepOutputs([deltas[3]], [final()]))
    await engine.send(Heartbeat(1, EngineStats(num_running=1)))
    await until(lambda: backend.health().stats == EngineStats(num_running=1))
    rest = await anext(stream)
    assert seen + rest == deltas
    assert await anext(stream) == final()


@pytest.mark.parametrize(
    ("code", "raised", "param", "told"),
    [
        ("queue_full", Overloaded, None, "server_is_overloaded"),
        ("draining", Overloaded, None, "engine_unavailable"),
        ("invalid_request", InvalidRequest, None, "invalid_value"),
        ("adapter_rejected", InvalidRequest, "model", None),
        ("internal", BackendFailed, None, "backend_failed"),
    ],
)
async def test_engine_errors_become_the_gateways(
    engine, backend, sink, code: str, raised: type[GatewayError], param: str | None, told: str | None
):
    await make_ready(backend, engine)
    reading = asyncio.create_task(read(backend, request()))
    await engine.expect(Submit)
    await engine.send(StepOutputs([], [final(completion=0, reason="error", error=EngineError(code, "why", 3.0))]))
    with pytest.raises(raised, match="why") as caught:
        await reading
    assert (caught.value.param, caught.value.code) == (param, told)
    assert caught.value.retry_after_s == (3.0 if raised is Overloaded else None)
    assert sink.refused_ids == (["req_1"] if raised is InvalidRequest else [])


async def test_a_dead_engine_fails_what_it_ran_and_the_next_one_serves(engine, backend, endpoint, sink):
    await make_ready(backend, engine)
    begun = asyncio.create_task(read(backend, request("req_1")))
    queued = asyncio.create_task(read(backend, request("req_2")))
    await engine.expect(Submit)
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7, 8], 2)], []))
    await engine.send(Heartbeat(0, EngineStats(num_running=2)))
    await until(lambda: backend.health().stats is not None)  # the delta came before
    engine.close()
    with pytest.raises(BackendFailed):
        await begun
    with pytest.raises(Overloaded) as refused:
        await queued
    assert refused.value.code == "engine_unavailable"
    assert {r.request_id: (r.finish_reason, r.usage) for r in sink.records} == {
        "req_1": ("error", Usage(3, 2)),
        "req_2": ("error", Usage(0, 0)),
    }
    # The engine's own counts are left for the engine to report.
    assert (sink.sources, sink.engine_ids) == ([None, None], ["", ""])
    assert not backend.health().ready
    assert sink.given_up_ids == []
    successor = ScriptedEngine(endpoint)
    await make_ready(backend, successor)
    await until(lambda: sink.given_up_ids == ["req_1", "req_2"])  # an engine is there, and has not told
    reading = asyncio.create_task(read(backend, request("req_3")))
    await successor.expect(Submit)
    await successor.send(StepOutputs([], [final("req_3")]))
    assert await reading == [final("req_3")]
    successor.close()


async def test_an_attempt_that_is_repeated_elsewhere_is_superseded_and_its_reservation_stays(engine, backend, sink):
    await make_ready(backend, engine)
    reading = asyncio.create_task(anext(backend.deltas(request())))
    await engine.expect(Submit)
    engine.close()
    with pytest.raises(Unanswered) as caught:
        await reading
    assert (caught.value.kind, caught.value.was_sent) == ("died", True)
    assert (sink.records, sink.superseded_records) == ([], []), "it is not said yet what becomes of the attempt"
    caught.value.supersede()
    assert sink.records == []
    assert sink.superseded_records == [UsageRecord("req_1", 0, "error", Usage(0, 0), b"m")]
    assert backend._recorder.lost_ids == []


async def test_an_engine_without_room_lets_another_be_asked_and_forgets_its_record(engine, backend, sink):
    await make_ready(backend, engine)
    reading = asyncio.create_task(anext(backend.deltas(request())))
    await engine.expect(Submit)
    full = EngineError("queue_full", "why", 3.0)
    await engine.send(StepOutputs([], [final(completion=0, reason="error", error=full)]))
    with pytest.raises(Unanswered) as caught:
        await reading
    assert (caught.value.kind, caught.value.was_sent) == ("full", True)
    caught.value.supersede()
    assert [(record.request_id, record.attempt) for record in sink.superseded_records] == [("req_1", 0)]
    assert sink.superseded_sources == [backend], "the engine waits to hear that it may forget"


def calling_request(marks: dict[str, int]) -> GenerateRequest:
    """Return a request that may call a tool; a parameter of the tool is named `marks`, like a field of the grammar that
    older engines lack.

    marks: the token ids of special tokens, by their text.
    """
    parameters = {"type": "object", "properties": {"marks": {"type": "object"}}}
    calls = CallGrammar([CallableTool("rate[ARGS]", parameters, "tools[0]")], "</s>", trigger=5, marks=marks)
    grammar = Grammar("tool_calls", msgspec.json.encode(calls).decode())
    return msgspec.structs.replace(request(), sampling=SamplingParams(max_tokens=10, grammar=grammar))


@pytest.mark.parametrize("minor", [0, 1, 2, 3])
async def test_special_tokens_within_calls_are_sent_only_to_engines_that_know_them(engine, backend, sink, minor):
    await make_ready(backend, engine, minor=minor)
    marked = calling_request({"[ARGS]": 6})
    assert (minor_of(request()), minor_of(calling_request({})), minor_of(marked)) == (0, 0, 2)
    if minor < 2:
        with pytest.raises(Unanswered, match="version does not know all of the request's grammar") as caught:
            await anext(backend.deltas(marked))
        assert (caught.value.kind, caught.value.was_sent) == ("absent", False)
        assert (backend.num_in_flight, sink.dispatched_ids) == (0, [])
        marked = calling_request({})  # goes to any engine
    reading = asyncio.create_task(read(backend, marked))
    assert (await engine.expect(Submit)).request == marked
    await engine.send(StepOutputs([], [final()]))
    assert await reading == [final()]


@pytest.mark.parametrize("minor", [2, 3, 4])
async def test_arguments_that_are_written_one_by_one_are_asked_of_engines_that_know_them(engine, backend, minor):
    await make_ready(backend, engine, minor=minor)
    parameters = {"type": "object", "properties": {"argument_pieces": {"type": "object"}}}
    calls = CallGrammar([CallableTool("<function=rate>\n", parameters, "tools[0]")], "</function>")
    singly = msgspec.structs.replace(calls, argument_pieces=ArgumentPieces("<parameter=", ">\n", "\n</parameter>\n"))
    known, asked = (
        msgspec.structs.replace(request(), sampling=SamplingParams(max_tokens=10, grammar=grammar))
        for grammar in (Grammar("tool_calls", msgspec.json.encode(each).decode()) for each in (calls, singly))
    )
    assert (minor_of(known), minor_of(asked)) == (0, 4)
    if minor < 4:
        with pytest.raises(Unanswered, match="version does not know all of the request's grammar"):
            await anext(backend.deltas(asked))
        asked = known
    reading = asyncio.create_task(read(backend, asked))
    assert (await engine.expect(Submit)).request == asked
    await engine.send(StepOutputs([], [final()]))
    assert await reading == [final()]


@pytest.mark.parametrize("minor", [0, 2, 3, 4])
async def test_an_older_engine_holds_an_answer_to_its_grammar_from_the_beginning(engine, backend, minor):
    await make_ready(backend, engine, minor=minor)
    thinking = Grammar("choice", '["yes"]', Thinking(end=((7,),), begin=6))
    asked = msgspec.structs.replace(request(), sampling=SamplingParams(max_tokens=10, grammar=thinking))
    known = asked
    if minor < 3:
        with pytest.raises(Unanswered, match="version does not know"):
            await anext(backend.deltas(asked))
        sampling = msgspec.structs.replace(asked.sampling, grammar=Grammar("choice", '["yes"]'))
        known = msgspec.structs.replace(asked, sampling=sampling)
    reading = asyncio.create_task(anext(backend.generate(Generation(asked))))
    assert (await engine.expect(Submit)).request == known
    await engine.send(StepOutputs([], [final()]))
    assert await reading


async def test_an_older_engine_is_sent_no_grammar_after_thinking_that_the_prompt_has_begun(engine, backend):
    await make_ready(backend, engine, minor=2)
    grammar = Grammar("choice", '["yes"]', Thinking(end=((7,),)))
    asked = msgspec.structs.replace(request(), sampling=SamplingParams(max_tokens=10, grammar=grammar))
    with pytest.raises(Unanswered, match="version does not know"):
        await anext(backend.generate(Generation(asked)))


async def test_a_silent_engine_is_dead_after_three_heartbeats_and_not_only_at_the_gateways_next_one(engine, backend):
    async def silence_s() -> float:
        await make_ready(backend, engine)
        await engine.expect(Heartbeat)
        await asyncio.sleep(HEARTBEAT_INTERVAL_S / 4)
        reading = asyncio.create_task(read(backend, request()))
        await engine.expect(Submit)
        await engine.send(Heartbeat(0))
        begun_s = time.monotonic()
        with pytest.raises(Overloaded, match="missed"):
            await reading
        return time.monotonic() - begun_s

    limit_s = DEAD_AFTER_S + HEARTBEAT_INTERVAL_S / 2
    assert await least(silence_s, limit_s) < limit_s


async def test_a_gateway_that_was_frozen_reads_waiting_messages_before_it_declares_its_engine_dead(engine, backend):
    await make_ready(backend, engine)
    reading = asyncio.create_task(read(backend, request()))
    await engine.expect(Submit)
    time.sleep(DEAD_AFTER_S + HEARTBEAT_INTERVAL_S)  # noqa: ASYNC251 - nothing of this process runs, the engine neither
    await engine.send(StepOutputs([], [final()]))
    assert await reading == [final()]


async def test_an_engine_without_a_substitute_may_be_silent_for_longer(engine, backend):
    others = [False]
    backend.watch(lambda: None, lambda: others[0])
    await make_ready(backend, engine)
    reading = asyncio.create_task(read(backend, request()))
    await engine.expect(Submit)
    await asyncio.sleep(DEAD_AFTER_S + HEARTBEAT_INTERVAL_S)
    assert backend.health().ready
    others[0] = True
    with pytest.raises(Overloaded, match="missed 3 heartbeats"):
        await reading


async def test_usage_that_is_durable_within_a_moment_is_acknowledged_in_one_message(engine, backend):
    await make_ready(backend, engine)
    await backend.acknowledge([("req_1", 0), ("req_2", 0)])
    await backend.acknowledge([("req_3", 1)])
    assert (await engine.expect(AckUsage)).keys == [("req_1", 0), ("req_2", 0), ("req_3", 1)]


async def test_a_gateway_that_stops_first_acknowledges_durable_usage(engine, backend):
    await make_ready(backend, engine)
    await backend.acknowledge([("req_1", 0)])
    await backend.stop()
    assert (await engine.expect(AckUsage)).keys == [("req_1", 0)]
    await engine.expect(Goodbye)


async def test_usage_that_nobody_acknowledged_is_taken_over(engine, backend, sink):
    await make_ready(backend, engine)
    orphan = UsageRecord("req_0", 0, "abort", Usage(5, 6), b"m")
    await engine.send(UnackedUsage([orphan]))
    assert await sink.wait_for(1) == [orphan]


async def test_a_message_that_does_not_decode_ends_the_session_and_the_next_one_serves(engine, backend):
    await make_ready(backend, engine)
    for garbage in (b"?", encode(Refused("reason")).replace(b"reason", b"\xff" * 6)):
        reading = asyncio.create_task(read(backend, request()))
        await engine.expect(Submit)
        await engine.send_frame(garbage)
        with pytest.raises(Overloaded, match="does not decode"):
            await reading
        await make_ready(backend, engine)


async def test_a_backend_that_was_stopped_says_so(engine, backend):
    await make_ready(backend, engine)
    await backend.stop()
    assert not backend.health().ready
    assert backend.health().detail == "stopped"


async def test_loading_an_adapter_says_why_it_does_not_fit(engine, backend):
    await make_ready(backend, engine)
    loading = asyncio.create_task(backend.load("d1"))
    assert (await engine.expect(LoadAdapter)).digest == "d1"
    await engine.send(AdapterStatus("d1", False, "rank 512 is too large"))
    with pytest.raises(InvalidRequest, match="rank 512"):
        await loading
    loading = asyncio.create_task(backend.load("d2"))
    await engine.expect(LoadAdapter)
    await engine.send(AdapterStatus("d2", True))
    await loading
    assert backend.resident() == {"d2"}


async def test_drain_waits_for_what_runs_and_takes_nothing_new(engine, backend):
    await make_ready(backend, engine)
    reading = asyncio.create_task(read(backend, request()))
    await engine.expect(Submit)
    draining = asyncio.create_task(backend.drain())
    await until(lambda: not backend.health().ready)
    with pytest.raises(Overloaded):
        await read(backend, request("req_2"))
    assert not draining.done()
    await engine.send(StepOutputs([], [final()]))
    await asyncio.gather(reading, draining)


async def test_parallel_probes_of_an_adapter_are_one_and_a_load_does_not_answer_them(engine, backend):
    await make_ready(backend, engine)
    probing = [asyncio.create_task(backend.probe("d1")) for _ in range(3)]
    asked = await engine.expect(LoadAdapter)
    assert (asked.digest, asked.pin, asked.probe) == ("d1", False, True)
    loading = asyncio.create_task(backend.load("d1"))
    assert not (await engine.expect(LoadAdapter)).probe, "the three were one question"
    await engine.send(AdapterStatus("d1", True))
    await loading
    assert not any(task.done() for task in probing)
    outcome = AdapterProbe(0.5, 1024, 28, 0.25)
    await engine.send(AdapterStatus("d1", True, probed=True, probe=outcome))
    assert await asyncio.gather(*probing) == [outcome] * 3


@pytest.mark.parametrize(
    ("code", "raised"),
    [("adapter_rejected", InvalidRequest), ("queue_full", Overloaded), ("internal", BackendFailed)],
)
async def test_a_probe_that_fails_says_whose_fault_it_is(code, raised, engine, backend):
    await make_ready(backend, engine)
    probing = asyncio.create_task(backend.probe("d1"))
    await engine.expect(LoadAdapter)
    await engine.send(AdapterStatus("d1", True, "it changes nothing", code, probed=True))
    with pytest.raises(raised, match="it changes nothing"):
        await probing


async def test_a_probe_ends_with_its_engine_and_another_may_follow(engine, backend):
    await make_ready(backend, engine)
    probing = asyncio.create_task(backend.probe("d1"))
    await engine.expect(LoadAdapter)
    await engine.send(Refused("restarting"))
    with pytest.raises(Overloaded):
        await probing
    await make_ready(backend, engine)
    probing = asyncio.create_task(backend.probe("d1"))
    await engine.expect(LoadAdapter)
    await engine.send(AdapterStatus("d1", True, probed=True, probe=AdapterProbe(0.5, 1024, 28, 0.25)))
    assert (await probing).num_bytes == 1024


async def test_a_probe_without_an_engine_may_be_asked_for_again(backend):
    with pytest.raises(Overloaded):
        await backend.probe("d1")


async def test_used_tokens_are_reported_once_and_service_elsewhere_goes_to_the_engine(engine, backend):
    await make_ready(backend, engine)
    assert backend.take_used() == []
    reading = asyncio.create_task(read(backend, msgspec.structs.replace(request(), weight=2.0)))
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_1", [7, 8], 2)], []))
    await until(lambda: any(stream.counts == [2] for stream in backend._requests._streams.values()))
    assert backend.take_used() == [UsedAmounts("t", 2.0, 0, 2, 0)]
    usage = Usage(prompt_tokens=3, completion_tokens=3, cached_tokens=1, discarded_tokens=2, adapter_load_bytes=9)
    await engine.send(StepOutputs([Delta("req_1", [9], 3)], [Final("req_1", "length", usage)]))
    await reading
    assert backend.take_used() == [UsedAmounts("t", 2.0, 2, 3, 9)], "of five generated tokens two were told before"
    assert backend.take_used() == []
    backend.report_used({"t": Service(1.0, 2.0, 3.0)})
    async with asyncio.timeout(PATIENCE_S):
        while not (collected := await engine.expect(Heartbeat)).elsewhere:
            pass
    assert collected.elsewhere == {"t": Service(1.0, 2.0, 3.0)}


async def test_each_reader_that_is_cut_off_gets_an_error_of_its_own(engine, backend):
    """A change to one request's error, such as the time to try again, does not show in the errors of other requests."""
    await make_ready(backend, engine)
    reading = [asyncio.create_task(read(backend, request(f"req_{number}"))) for number in range(3)]
    for _ in reading:
        await engine.expect(Submit)
    backend.cut_off()
    errors = await asyncio.gather(*reading, return_exceptions=True)
    assert all(isinstance(error, ShuttingDown) for error in errors) and len(set(map(id, errors))) == len(errors)


async def test_each_call_about_an_adapter_that_is_lost_gets_an_error_of_its_own():
    calls = AdapterCalls(lambda _: None)
    command = LoadAdapter("digest", probe=True)
    asking = [asyncio.create_task(calls.ask(command, PATIENCE_S)) for _ in range(2)]
    await asyncio.sleep(0)
    calls.lost(lambda: not_ready("it is gone"))
    first, second = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, Overloaded) and isinstance(second, Overloaded) and first is not second


async def run_lines(backend: EngineBackend, engine: ScriptedEngine, ids: list[str], hold_s: float) -> asyncio.Future:
    """Begin lines of a batch, at the end of each of which the event loop is held for a while."""

    async def run(request_id: str) -> None:
        with contextlib.suppress(GatewayError):
            await read(backend, msgspec.structs.replace(request(request_id), batch=BatchTerms()))
        time.sleep(hold_s)  # noqa: ASYNC251 - the work that holds the loop

    reading = asyncio.gather(*map(run, ids))
    for _ in ids:
        await engine.expect(Submit)
    return reading


async def test_lines_of_batches_that_a_backend_lost_are_given_up_once_an_engine_is_there(
    engine, backend, endpoint, sink
):
    await make_ready(backend, engine)
    ids = ["req_1", "req_2", "req_3"]
    reading = await run_lines(backend, engine, ids, hold_s=0.3)
    engine.close()
    await until(lambda: not backend.health().ready)
    successor = ScriptedEngine(endpoint)
    await make_ready(backend, successor)
    await reading
    await until(lambda: sorted(sink.given_up_ids) == ids)
    successor.close()


async def test_a_line_whose_reply_has_come_does_not_count_as_waiting(engine, backend):
    await make_ready(backend, engine)
    ids = ["req_1", "req_2", "req_3"]
    reading = await run_lines(backend, engine, ids, hold_s=0.1)
    assert backend.oldest_wait_s() > 0
    await engine.send(StepOutputs([], [final(id, completion=0, reason="stop") for id in ids]))
    await until(lambda: backend.num_in_flight == 0)
    assert not reading.done() and backend.oldest_wait_s() == 0.0
    await reading


async def test_requests_that_a_backend_lost_are_given_up_when_it_is_stopped(engine, backend, sink):
    await make_ready(backend, engine)
    lost = asyncio.create_task(read(backend, request("req_1")))
    late = asyncio.create_task(anext(unread := backend.deltas(request("req_2"))))
    await engine.expect(Submit)
    await engine.expect(Submit)
    await engine.send(StepOutputs([Delta("req_2", [7], 1)], []))
    await late
    engine.close()
    with pytest.raises(Overloaded):
        await lost
    assert sink.given_up_ids == []
    await backend.stop()  # as for a replica that is started anew, elsewhere
    await until(lambda: sink.given_up_ids == ["req_1"])
    await unread.aclose()
    await until(lambda: sink.given_up_ids == ["req_1", "req_2"])
