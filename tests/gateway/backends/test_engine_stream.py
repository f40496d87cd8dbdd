"""Tests of `EngineStream`: what a reader of a whole reply takes, and when."""

from __future__ import annotations

import asyncio

import pytest

from engine.protocol import Delta, Final, GenerateRequest, SamplingParams, Usage
from gateway.backends.engine.backlog import MAX_APART
from gateway.backends.engine.stream import EngineStream
from gateway.domain.errors import ShuttingDown


def stream_of(*, is_whole: bool) -> EngineStream:
    request = GenerateRequest("req_1", [1, 2], SamplingParams(max_tokens=100), tenant="t", meter=b"m")
    return EngineStream(request, "engine", 0.0, [0], is_whole=is_whole)


def add_tokens(stream: EngineStream, *token_ids: int) -> None:
    for token_id in token_ids:
        stream.add(Delta("req_1", [token_id], stream.counts[0] + 1), 1.0, full_for_s=5.0)


async def ready(*tasks: asyncio.Task[object]) -> list[bool]:
    """Let the tasks run as far as they can; tell of each whether it is done."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_a_reader_of_a_whole_reply_wakes_once_for_many_tokens_and_gets_them_joined():
    stream, streamed = stream_of(is_whole=True), stream_of(is_whole=False)
    taking, taking_each = asyncio.create_task(stream.take()), asyncio.create_task(streamed.take())
    await ready()
    for each in (stream, streamed):
        add_tokens(each, *range(MAX_APART - 1))
    assert await ready(taking, taking_each) == [False, True]
    add_tokens(stream, MAX_APART - 1)
    (joined,) = await taking
    assert (joined.token_ids, joined.num_completion_tokens) == (list(range(MAX_APART)), MAX_APART)
    assert [each.token_ids for each in await taking_each] == [[number] for number in range(MAX_APART - 1)]


async def test_the_rest_of_a_whole_reply_comes_before_its_final():
    stream, final = stream_of(is_whole=True), Final("req_1", "length", Usage(2, 3))
    add_tokens(stream, 7, 8, 9)
    taking = asyncio.create_task(stream.take())
    assert await ready(taking) == [False]
    stream.final = final
    stream.wake()
    (joined,) = await taking
    assert joined.token_ids == [7, 8, 9]
    assert await stream.take() is final


async def test_a_whole_reply_that_is_cut_off_ends_with_what_came():
    stream = stream_of(is_whole=True)
    add_tokens(stream, 7)
    taking = asyncio.create_task(stream.take())
    assert await ready(taking) == [False]
    stream.is_cut_off = True
    stream.wake()
    (joined,) = await taking
    assert joined.token_ids == [7]
    with pytest.raises(ShuttingDown):
        await stream.take()
