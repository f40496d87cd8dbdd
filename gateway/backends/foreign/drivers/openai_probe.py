"""A probe of one model of a server by OpenAI's completions.

A probe shows whether it is this model that answers, and how likely a token is.
"""

from __future__ import annotations

import msgspec

from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import AnotherModel, BadReply, ServerRefused
from gateway.backends.foreign.server import Server

PROBE_TEXT = "The"
"""The prompt of a probe."""


class _Logprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a choice, with only the fields that are read."""

    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct, frozen=True):
    """One choice of a completion."""

    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct, frozen=True):
    """A completion, with only the fields that are read."""

    model: str
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Completion).decode
_encode = msgspec.json.Encoder().encode


async def probe_completion(server: Server, model: str, within_s: float) -> float:
    """Have a model generate one token; return its log-probability, 0 where the server tells none.

    Raises ServerRefused: when the server does not know the model.
    Raises AnotherModel: when the server says that another model answered.
    Raises ServerGone, BadReply: when the server does not answer as it should.
    """
    body = {"model": model, "prompt": PROBE_TEXT, "max_tokens": 1, "temperature": 0.0, "logprobs": 1}
    reply = await server.ask_whole("POST", "/v1/completions", _encode(body), within_s=within_s)
    if reply.status != 200:
        raise ServerRefused(reply.status, text=text_of(reply.body))
    try:
        completion = _decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadReply("its reply to a probe is no completion") from None
    if completion.model != model:
        raise AnotherModel("it answers a probe with another model")
    logprobs = completion.choices[0].logprobs if completion.choices else None
    found = logprobs.token_logprobs[0] if logprobs is not None and logprobs.token_logprobs else None
    return found or 0.0
