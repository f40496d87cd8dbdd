"""Made-up runs of texts, calls, limits and failures: each stream keeps the laws, and equals the whole reply."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from engine.protocol import TokenLogprobs, Usage
from gateway.backends.generation import Piece, Token
from gateway.domain.errors import BackendFailed, GatewayError, InvalidRequest, LimitReached, ShuttingDown
from gateway.openai.responses.custom_input import CustomInput, arguments_of
from gateway.openai.responses.items import Item
from gateway.openai.responses.options import initial_response
from gateway.openai.responses.reply import Reply, ReplyIds
from gateway.openai.responses.tools import response_tools
from gateway.openai.responses.wire import CreateResponse
from gateway.openai.shared.options import sampling_params
from gateway.pipeline.collected import Collector
from gateway.text.tools.parser import CallDelta
from tests.gateway.openai.responses.laws import check, read
from tests.seeds import seeds

NUM_STREAMS, FULL_STREAMS = 1_000, 100_000
STRICT_SHARE = 0.05
"""The share of streams that are also checked with OpenAI's own types; all of them at full size."""

TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "custom", "name": "c"},
    {"type": "function", "name": "g"},
    {
        "type": "namespace",
        "name": "n",
        "description": "More of them.",
        "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}],
    },
]
ALPHABET = ["a", " ", "\n", '"', "\\", "}", "<tool_call>", "é", "😀", "\u2028", "\x85", "\x00", "𝄞", "data: [DONE]\n\n"]
ENDS = ["</think>", "\n</think>\n\n", "</think", ""]
ERRORS: list[GatewayError] = [
    BackendFailed("The engine died."),
    ShuttingDown(),
    InvalidRequest("Wrong.", param="input", code="context_length_exceeded"),
    LimitReached("Too much."),
]


def text(rng: random.Random, most: int = 30) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randrange(most)))


def cut(rng: random.Random, whole: str) -> list[str]:
    """Return a text as a list of pieces, some of them empty."""
    ends = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randrange(8)))
    return [whole[start:end] for start, end in zip([0, *ends], [*ends, len(whole)], strict=True)]


def random_token(rng: random.Random) -> Token:
    top = rng.randrange(3)
    return Token(rng.randrange(200), 0, TokenLogprobs(-0.5, list(range(top)), [-1.0] * top))


def random_pieces(
    rng: random.Random, *, with_logprobs: bool, may_call: bool, must_call: bool, thinks: bool = False
) -> list[Piece]:
    """Return random pieces of a run, without its end.

    may_call, must_call: whether pieces may, and have to, hold calls of tools. thinks: True: thinking comes first.
    """
    said = "" if must_call else text(rng)
    if thinks and not must_call:
        said = rng.choice(["<think>", "<think>\n", "\n<think>", ""]) + text(rng) + rng.choice(ENDS) + said
    pieces = [Piece(0, part, [random_token(rng)] * rng.randrange(2 * with_logprobs + 1)) for part in cut(rng, said)]
    deltas: list[CallDelta] = []
    for index in range(rng.randrange(4) if may_call else 0):
        name = rng.choice(["f", "c", "g", "n__f", "n__c"])
        if name.endswith("c"):
            whole = arguments_of(text(rng)) if rng.random() < 0.9 else json.dumps({"input": text(rng)})
        else:
            whole = json.dumps({"a": text(rng)})
        first, *others = cut(rng, whole)
        deltas += [CallDelta(index, name, first), *(CallDelta(index, None, part) for part in others)]
    while deltas:
        together = rng.randrange(1, 4)
        pieces.append(Piece(0, "", calls=tuple(deltas[:together])))
        deltas = deltas[together:]
    return [msgspec.structs.replace(piece, num_tokens=place + 1) for place, piece in enumerate(pieces)]


def reply_to(fields: dict[str, Any], *, num_input: int = 1, thinks: bool = False) -> Reply:
    wire = msgspec.convert({"model": "tiny", "input": "hello"} | fields, CreateResponse)
    tools = response_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls)
    initial = initial_response(
        wire,
        tools,
        sampling_params(wire, num_logprobs=None),
        id="resp_x",
        created_at=1,
        tier="default",
        is_stored=False,
    )
    must_call = tools.use is not None and tools.use.must_call
    ids = ReplyIds("req_x", "x", num_input)
    return Reply(
        initial,
        ids,
        tools=tools,
        must_call=must_call,
        to_bytes=lambda _: b"t\xc3",
        num_prompt_tokens=7,
        thinks=thinks,
        seal=lambda text: f"sealed {len(text)}",
    )


async def stream_text(reply: Reply, pieces: list[list[Piece]], end: Usage | GatewayError, *, is_padded: bool) -> str:
    events = reply.events(is_padded=is_padded)
    data = b"".join([await events.encode(each) for each in pieces])
    if isinstance(end, GatewayError):
        return (data + events.failed(end)).decode()
    return (data + await events.encode(end) + events.end()).decode()


async def taken_over(rng: random.Random, reply: Reply, pieces: list[list[Piece]], error: GatewayError) -> str:
    """Return a stream that begins with the events of one run and ends with those of another that continued it."""
    first, second = reply.events(is_padded=rng.random() < 0.5), reply.events(is_padded=False)
    logged = [event for each in pieces[: rng.randrange(len(pieces))] for event in first.encode_each(each)]
    logged = logged or first.encode_each([])
    second.restore(logged, first.counts)
    return b"".join([*logged, second.failed(error)]).decode()


async def one_stream(rng: random.Random, *, strictly: bool) -> None:
    may_call = rng.random() < 0.6
    must_call = may_call and rng.random() < 0.3
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required" if must_call else "auto"} if may_call else {}
    thinks = rng.random() < 0.4
    reply = reply_to(fields, num_input=rng.randrange(1, 5), thinks=thinks)
    with_logprobs = rng.random() < 0.3
    pieces = random_pieces(rng, with_logprobs=with_logprobs, may_call=may_call, must_call=must_call, thinks=thinks)
    is_cut, fails = rng.random() < 0.3, rng.random() < 0.2
    together: list[list[Piece]] = []
    for piece in pieces:
        if together and rng.random() < 0.3:
            together[-1].append(piece)
        else:
            together.append([piece])
    usage = Usage(7, len(pieces), cached_tokens=rng.randrange(8))
    if fails:
        together = together[: rng.randrange(1, len(together) + 1)]
        error = rng.choice(ERRORS)
        response = check(read(await stream_text(reply, together, error, is_padded=False)), strictly=strictly)
        assert response["status"] == "failed"
        assert response["usage"]["output_tokens"] == sum(map(len, together))
        return
    together.append([Piece(0, "", finish_reason="length" if is_cut else "stop", num_tokens=len(pieces))])
    is_padded = rng.random() < 0.2
    response = check(read(await stream_text(reply, together, usage, is_padded=is_padded)), strictly=strictly)
    assert response["status"] == ("incomplete" if is_cut else "completed")
    check(read(await taken_over(rng, reply, together, rng.choice(ERRORS))), strictly=strictly)
    collector = Collector(1, counts_steps=thinks)
    for each in together:
        collector.add(each)
    collected = collector.add(usage)
    assert collected is not None
    assert msgspec.json.decode(msgspec.json.encode(await reply.whole(collected))) == response
    msgspec.convert(response["output"], list[Item])  # as input of a further response


async def test_every_stream_keeps_the_laws_and_says_what_the_whole_reply_says(full: bool) -> None:
    for number in seeds(NUM_STREAMS, FULL_STREAMS, full=full):
        rng = random.Random(number)
        await one_stream(rng, strictly=full or rng.random() < STRICT_SHARE)


def test_the_input_of_a_custom_tool_is_the_same_however_its_arguments_come() -> None:
    rng = random.Random(0)
    for _ in range(500):
        said = text(rng)
        for whole in (arguments_of(said), json.dumps({"input": said}), f' {{ "input" : {json.dumps(said)} }}\n'):
            parser = CustomInput()
            parts = [parser.push(part) for part in cut(rng, whole)]
            assert "".join(parts) + parser.finish() == said
            "".join(parts).encode()


def test_arguments_of_another_form_are_the_input_as_they_are() -> None:
    parser = CustomInput()
    assert parser.push('{"other": 1}') + parser.finish() == '{"other": 1}'


def test_arguments_that_break_off_before_the_text_are_no_input() -> None:
    for begun in ("", "{", '{"inp', '{"input": '):
        parser = CustomInput()
        assert parser.push(begun) + parser.finish() == ""


def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    parser = CustomInput()
    assert parser.push('{"input": "a\\ud83d') == "a"
    assert parser.push('!"}') == "\ufffd!"
