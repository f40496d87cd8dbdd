"""The part of a reply that a client may see is noted before it is handed on, in one record for all that came at
once."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.usage import Count
from tests.gateway.backends.foreign.backends import asking, backend_of, collect
from tests.gateway.backends.foreign.fake import fake_server, saying
from tests.gateway.backends.scripted import ListSink

NUM_STREAMS, NUM_WORDS = 4, 12


class CountSink(ListSink):
    """A sink that stores the last noted count of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, int] = {}

    def progressed(self, counts: list[Count]) -> None:
        super().progressed(counts)
        self.last |= {each.request_id: each.completion_tokens for each in counts}


async def test_no_part_is_read_before_its_count_is_noted() -> None:
    sink = CountSink()

    async def read(backend: ForeignBackend, request_id: str) -> None:
        async for item in backend.generate(asking(request_id=request_id)):
            if isinstance(item, list):
                assert sink.last[request_id] >= item[-1].num_tokens > 0

    async with fake_server() as server:
        server.answer = saying(*["word "] * NUM_WORDS, counts=(9, NUM_WORDS), pause_s=0.002)
        async with backend_of(server.url, sink) as backend:
            await asyncio.gather(*(read(backend, f"req_{number}") for number in range(NUM_STREAMS)))
    assert [record.usage.completion_tokens for record in sink.records] == [NUM_WORDS] * NUM_STREAMS


async def test_texts_of_a_choice_that_came_at_once_are_one_piece_and_lose_nothing() -> None:
    async with fake_server() as server:
        server.answer = saying(*(f"{number} " for number in range(NUM_WORDS)), counts=(9, NUM_WORDS))
        async with backend_of(server.url, ListSink()) as backend:
            collected = await collect(backend, asking())
    assert "".join(piece.text for piece in collected.pieces) == "".join(f"{number} " for number in range(NUM_WORDS))
    assert collected.finish_reasons == ["stop"]
    assert collected.usage is not None and collected.usage.completion_tokens == NUM_WORDS
    assert msgspec.to_builtins(collected.pieces[-1])["num_tokens"] == NUM_WORDS
