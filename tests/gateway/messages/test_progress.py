"""Made-up runs of thinking, text, calls, limits and failures: streams keep the laws and equal the whole reply."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Piece
from gateway.domain.errors import BackendFailed, GatewayError, ShuttingDown
from gateway.messages.reply import MessageEvents, Reply
from gateway.messages.wire import MessageObject, MessageUsage
from gateway.pipeline.collected import Collector
from gateway.text.tools.parser import CallDelta
from tests.gateway.messages.laws import check, read
from tests.seeds import seeds

NUM_STREAMS, FULL_STREAMS = 400, 100_000
WORDS = ["a", " ", "\n", "é", "😀", "<", "<think", "</think>", "</thi", '"', "\\", "\u2028", "word "]
ERRORS: list[GatewayError] = [BackendFailed("The engine died."), ShuttingDown()]


def text(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(12)))


def cut(rng: random.Random, whole: str) -> list[str]:
    """Return a text as a list of parts, at least one. Only a single part may be empty."""
    parts = []
    while whole:
        size = rng.randrange(1, 6)
        parts.append(whole[:size])
        whole = whole[size:]
    return parts or [""]


def made_up(rng: random.Random, thought: str | None) -> list[Piece]:
    said = ("" if thought is None else f"<think>\n{thought}\n</think>\n\n") + text(rng)
    pieces = [Piece(0, part) for part in cut(rng, said)]
    for index in range(rng.randrange(3)):
        first, *others = cut(rng, json.dumps({"a": text(rng), "b": [{"c": 1}, None]}))
        if rng.random() < 0.2:
            others = others[: rng.randrange(len(others) + 1)]
        pieces.append(Piece(0, "", calls=(CallDelta(index, rng.choice("fg"), first),)))
        pieces += [Piece(0, "", calls=(CallDelta(index, None, part),)) for part in others]
    return [msgspec.structs.replace(piece, num_tokens=place + 1) for place, piece in enumerate(pieces)]


async def one_stream(rng: random.Random) -> None:
    thought = text(rng).replace("</think>", "").replace("<think", "").strip() if rng.random() < 0.4 else None
    reply = Reply(
        request_id="req_x",
        initial=MessageObject(id="msg_x", model="tiny", content=[], usage=MessageUsage(7, 0)),
        sign=lambda thinking: f"signed {len(thinking)}",
        splits_thinking=thought is not None or rng.random() < 0.2,
        is_thinking=False,
        may_fill_context=rng.random() < 0.5,
    )
    together: list[list[Piece]] = []
    pieces = made_up(rng, thought)
    for piece in pieces:
        if together and rng.random() < 0.3:
            together[-1].append(piece)
        else:
            together.append([piece])
    encoder = MessageEvents(reply)
    if rng.random() < 0.2:
        together = together[: rng.randrange(1, len(together) + 1)]
        data = b"".join([await encoder.encode(each) for each in together]) + encoder.failed(rng.choice(ERRORS))
        assert check(read(data.decode())) is None
        return
    stop = rng.choice(["", "", "zz"])
    reason = "stop" if stop or rng.random() < 0.6 else "length"
    together.append([Piece(0, "", finish_reason=reason, stop_string=stop, num_tokens=len(pieces))])
    usage = Usage(7, len(pieces), cached_tokens=rng.randrange(8))
    data = b"".join([await encoder.encode(each) for each in [*together, usage]]) + encoder.end()
    message = check(read(data.decode()))
    collector = Collector(1)
    for each in together:
        collector.add(each)
    collected = collector.add(usage)
    assert collected is not None and message is not None
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(reply.whole(collected)))
    assert whole == message
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == 7
    blocks = {block["type"]: block for block in message["content"]}
    if thought:
        assert message["content"][0]["thinking"] == thought
    elif thought is None and not reply.splits_thinking:
        assert "thinking" not in blocks


async def test_every_stream_keeps_the_laws_and_says_what_the_whole_message_says(full: bool) -> None:
    for number in seeds(NUM_STREAMS, FULL_STREAMS, full=full):
        await one_stream(random.Random(number))
