"""The adapters of llama.cpp's server: those with which the server was started, each by its number.

The server answers an unknown number from the base without an error, and a restart may give a number to another adapter.
So each connection has to prove that the numbers of its server are those of the request.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import msgspec

from adapters.store import is_digest
from gateway.backends.foreign.connection import ServerChanged
from gateway.backends.foreign.driver import ServerInfo
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, ServerRefused
from gateway.backends.foreign.server import Proof, Server

PATH = "/lora-adapters"
MAX_ADAPTERS = 10_000
PROBE_TEXT = "The"
"""The prompt of a probe."""


class _Listed(msgspec.Struct, frozen=True):
    """An adapter of the server's list."""

    id: int
    """The number of the adapter."""
    path: str
    """The path of the adapter's file."""


class _Probability(msgspec.Struct, frozen=True):
    """A token's log-probability."""

    logprob: float = 0.0


class _Completion(msgspec.Struct, frozen=True):
    """A completion, with only the fields that are read."""

    content: str
    completion_probabilities: list[_Probability] = []


_decode_list = msgspec.json.Decoder(list[_Listed]).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode
_encode = msgspec.json.Encoder().encode


class LlamaCppAdapters:
    """The `AdapterWay` of llama.cpp."""

    can_load = False
    takes_names = False
    has_to_differ = False
    missing: re.Pattern[str] | None = None

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Raise AssertionError: the server has the adapters with which it was started."""
        raise AssertionError("a server has the adapters with which it was started")

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Raise AssertionError: the server keeps the adapters with which it was started."""
        raise AssertionError("a server keeps the adapters with which it was started")

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token with the adapter's scale at 1 and all others at 0; return its log-probability."""
        body = {
            "prompt": PROBE_TEXT,
            "n_predict": 1,
            "temperature": 0.0,
            "n_probs": 1,
            "lora": scales_of(info, digest),
        }
        proof = proof_of(info) if digest else None
        reply = await server.ask_whole("POST", "/completion", _encode(body), within_s=within_s, proof=proof)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            completion = _decode_completion(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("its reply to a probe is no completion") from None
        return completion.completion_probabilities[0].logprob if completion.completion_probabilities else 0.0


def scales_of(info: ServerInfo, digest: str) -> list[dict[str, Any]]:
    """Return the scale of each adapter of the server in a request for one of them; digest: "" is the base.

    Each number is named, for the base as well: the server's own default for the others can be changed by anybody, and
    with an empty list a request goes on with the adapter that its slot had before.

    Raises ServerChanged: when the server has the adapter no more.
    """
    if digest and digest not in (info.adapters or ()):
        raise ServerChanged("it no longer has the adapter")
    chosen = info.places.index(digest) if digest else -1
    return [{"id": number, "scale": float(number == chosen)} for number in range(len(info.places))]


def proof_of(info: ServerInfo) -> Proof:
    """Return the question whose answer shows that the numbers of adapters are still those that were listed."""
    return Proof(PATH, info.places, places_in)


def places_in(body: bytes) -> tuple[str, ...]:
    """Return the digests of a server's adapters by their numbers, "" for one whose file has another name.

    Raises BadReply: when the answer is no list of adapters.
    """
    try:
        listed = _decode_list(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadReply("its list of adapters has another form") from None
    if len(listed) > MAX_ADAPTERS or sorted(each.id for each in listed) != list(range(len(listed))):
        raise BadReply("the numbers of its adapters have gaps")
    names = [PurePosixPath(each.path.replace("\\", "/")).stem for each in sorted(listed, key=lambda each: each.id)]
    # Of two with the same content the first one is used.
    return tuple(name if is_digest(name) and name not in names[:place] else "" for place, name in enumerate(names))
