"""The work that a large body may cost is known before the body is decoded, and a refusal names the field that it
names in a small body of the same kind."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from gateway.domain.errors import InvalidRequest
from gateway.http.fields import decode, refuse_unsupported
from gateway.http.json_work import MAX_WORK, UNCOUNTED_BYTES, affordable, are_too_much
from gateway.openai.chat.messages import template_messages
from gateway.openai.chat.wire import CHAT_NO_EFFECT, ChatCompletionRequest
from gateway.openai.completions.wire import CompletionRequest
from gateway.openai.embeddings.wire import EmbeddingsRequest
from gateway.openai.tokens.wire import DetokenizeRequest, TokenizeRequest

SIZE = 4 << 20
MAX_CPU_S = 0.05
PART = 4
"""The divisor of the bounds on size and time in the test of each field: work is proportional to bytes."""

TRIES = 5
MOST_TIMES = 1.6
"""The longest time for a field, as a multiple of the time in which msgspec decodes a list of empty strings with as many
bytes. It counts on machines that are too slow for MAX_CPU_S: 50 ms on one where the list takes 31."""

BASE = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    CompletionRequest: {"model": "m", "prompt": "x"},
    EmbeddingsRequest: {"model": "m", "input": "x"},
    TokenizeRequest: {"model": "m", "prompt": "x"},
    DetokenizeRequest: {"model": "m", "tokens": [1]},
}
FIELDS = [(kind, field) for kind in BASE for field in (*kind.__struct_encode_fields__, "unknown")]


def array_of(unit: bytes, size: int = SIZE) -> bytes:
    return b"[" + (unit + b",") * (size // (len(unit) + 1) - 1) + unit + b"]"


def fillings(size: int) -> dict[str, bytes]:
    return {
        "arrays": array_of(b"[]", size),
        "objects": array_of(b"{}", size),
        "strings": array_of(b'""', size),
        "digits": b"1" * size,
        "numbers": array_of(b"1", size),
    }


FILLINGS = fillings(SIZE)


def body_of(kind: type[Any], field: str, value: bytes) -> bytes:
    others = {name: given for name, given in BASE[kind].items() if name != field}
    start = msgspec.json.encode(others)[:-1] + (b"," if others else b"")
    return start + b'"%b":%b}' % (field.encode(), value)


def outcome(kind: type[Any], body: bytes) -> tuple[str | None, str | None] | None:
    try:
        decode(msgspec.json.Decoder(kind), body)
    except InvalidRequest as error:
        assert len(error.message) < 1000
        return error.code, error.param
    return None


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{kind.__name__}-{field}" for kind, field in FIELDS])
def test_no_field_costs_much_however_it_is_filled(kind: type[Any], field: str, full: bool) -> None:
    """The best of a few tries counts, since other processes share the caches of this machine.

    An unknown field, and at full size every field, has a whole body.
    """
    part = 1 if full or field == "unknown" else PART
    yardstick = array_of(b'""', SIZE // part)
    for name, value in fillings(SIZE // part).items():
        body, least_s, most_s, yardstick_s = body_of(kind, field, value), float("inf"), MAX_CPU_S / part, float("inf")
        for _ in range(TRIES):
            least_s = min(least_s, cpu_s(partial(outcome, kind, body)))
            if least_s < most_s:
                break
            yardstick_s = min(yardstick_s, cpu_s(partial(msgspec.json.decode, yardstick)))
            most_s = max(MAX_CPU_S / part, MOST_TIMES * yardstick_s)
        assert least_s < most_s, name


def cpu_s(run: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    started_s = time.thread_time()
    run()
    return time.thread_time() - started_s


@pytest.mark.parametrize("field", ["moderation", "audio", "web_search_options", "prompt_cache_options"])
def test_a_refused_field_is_refused_by_its_name_however_large(field: str) -> None:
    decoder = msgspec.json.Decoder(ChatCompletionRequest)
    refusals = set()
    for value in (b"[[]]", FILLINGS["arrays"], FILLINGS["objects"], FILLINGS["strings"], b"{}"):
        wire = decode(decoder, body_of(ChatCompletionRequest, field, value))
        with pytest.raises(InvalidRequest) as refused:
            refuse_unsupported(wire, CHAT_NO_EFFECT)
        refusals.add((refused.value.message, refused.value.param, refused.value.code))
    ((_, param, code),) = refusals
    assert (param, code) == (field, "unsupported_parameter")
    padded = body_of(ChatCompletionRequest, field, b" " * UNCOUNTED_BYTES + b"null")
    refuse_unsupported(decode(decoder, padded), CHAT_NO_EFFECT)


def test_a_value_of_the_wrong_type_is_told_so_however_large() -> None:
    for field, small in (("temperature", b"[[]]"), ("stop", b"{}"), ("unknown", b"[[]]"), ("user", b"[1]")):
        large = array_of(small[1:-1]) if small != b"{}" else b'{"a":%b}' % FILLINGS["arrays"]
        expected = outcome(ChatCompletionRequest, body_of(ChatCompletionRequest, field, small))
        assert outcome(ChatCompletionRequest, body_of(ChatCompletionRequest, field, large)) == expected


def test_a_field_with_too_many_values_is_refused_by_its_name() -> None:
    too_many = b"[%b]" % b",".join([b'{"role":"user","content":"x"}'] * 40_000)
    body = body_of(ChatCompletionRequest, "messages", too_many)
    assert outcome(ChatCompletionRequest, body) == ("invalid_value", "messages")
    repeated = b'{"model":"m",' + b",".join([b'"stop":["x","y"]'] * 200_000) + b"}"
    assert outcome(CompletionRequest, repeated) == ("invalid_value", "stop"), "each of them is decoded"
    assert outcome(EmbeddingsRequest, body_of(EmbeddingsRequest, "input", FILLINGS["arrays"])) == (
        "invalid_value",
        "input",
    )


def test_large_bodies_that_make_little_work_are_decoded() -> None:
    text = 'He said: "a, [b], {c}" \\ and left.\n' * 100_000
    wire = decode(
        msgspec.json.Decoder(CompletionRequest), msgspec.json.encode({"model": "m", "prompt": text, "echo": True})
    )
    assert wire.prompt == text
    ids = list(range(1000, 1150)) * 2000
    for kind, field in ((EmbeddingsRequest, "input"), (DetokenizeRequest, "tokens")):
        decoded = decode(msgspec.json.Decoder(kind), body_of(kind, field, msgspec.json.encode(ids)))
        assert getattr(decoded, field) == ids, "as many as one request may have"


@pytest.mark.parametrize("seed", range(20))
def test_strings_are_told_from_what_is_between_them(seed: int) -> None:
    """Strings full of quotes, brackets and commas are as cheap to decode as others, so their bodies pass unchanged."""
    rnd = random.Random(seed)
    texts = ["".join(rnd.choices('\\"[]{},:a💥\n', k=rnd.randrange(5000))) for _ in range(200)]
    body = msgspec.json.encode({"model": "m", "input": texts})
    assert len(body) > UNCOUNTED_BYTES
    assert affordable(body, EmbeddingsRequest) is body


def test_the_arguments_of_calls_count_together() -> None:
    assert not are_too_much(['{"text": "some code"}'] * 1000)
    assert are_too_much(["[" + "[]," * 100 + "1]"] * 1000)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" + "[]," * 100_000 + "1]"}}
    body = {"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]}
    wire = decode(msgspec.json.Decoder(ChatCompletionRequest), msgspec.json.encode(body))
    with pytest.raises(InvalidRequest) as refused:
        template_messages(wire.messages)
    assert refused.value.param == "messages"


def test_the_collector_is_on_again_whatever_was_decoded() -> None:
    outcome(EmbeddingsRequest, body_of(EmbeddingsRequest, "input", msgspec.json.encode(["x"] * 30_000)))
    outcome(EmbeddingsRequest, b"[" * (UNCOUNTED_BYTES + 1))
    outcome(EmbeddingsRequest, b"x" * (UNCOUNTED_BYTES + 1))
    assert gc.isenabled()
    assert MAX_WORK > 300_000
