"""The adapters of Ollama: each sent to it whole, and made a model of its own there, named by the digest of its content.

Ollama runs each such model apart: the weights of the base are in memory once for each adapter in use. It answers a name
that it does not know with 404.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any

import msgspec

from adapters.errors import AdapterRejected, StoreFailure
from adapters.store import FILE_NAMES, is_digest
from gateway.backends.foreign.driver import Content, ServerInfo
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import AnotherModel, BadReply, ServerRefused
from gateway.backends.foreign.server import Server

PROBE_TEXT = "The"
"""The prompt of a probe."""

LATEST = ":latest"
"""The tag that Ollama gives to names without one."""


class _Completion(msgspec.Struct, frozen=True):
    """A completion, with only the fields that are read."""

    model: str
    done: bool


_decode_completion = msgspec.json.Decoder(_Completion).decode
_encode = msgspec.json.Encoder().encode


class OllamaAdapters:
    """The `AdapterWay` of Ollama."""

    can_load = True
    takes_names = True
    has_to_differ = False
    missing: re.Pattern[str] | None = None

    def __init__(self, content: Content, base: str, options: dict[str, Any]) -> None:
        """Hold adapters of one base.

        content: reads adapters from the store.
        base: the name of the base model.
        options: the options of every request.
        """
        self._content = content
        self._base = base
        self._options = options

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Send the adapter's files, and have Ollama make a model of them and of the base, named by the digest."""
        try:
            files = await asyncio.to_thread(self._read, digest)
        except (AdapterRejected, StoreFailure, OSError) as error:
            raise ServerRefused(404, text=f"the store does not give it: {error}") from None
        blobs = {}
        for name, data in files.items():
            blobs[name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
            await self._ask_server(server, "POST", f"/api/blobs/{blobs[name]}", data, within_s)
        body = {"model": digest, "from": self._base, "adapters": blobs, "stream": False}
        await self._ask_server(server, "POST", "/api/create", _encode(body), within_s)

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Delete the adapter's model; one that Ollama does not have is no error."""
        reply = await server.ask_whole("DELETE", "/api/delete", _encode({"model": digest}), within_s=within_s)
        if reply.status not in (200, 404):
            raise ServerRefused(reply.status, text=text_of(reply.body))

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token; return 0.0, since Ollama's replies have no log-probabilities."""
        name = digest or info.served_model
        options = self._options | {"num_predict": 1, "temperature": 0.0}
        body = {"model": name, "prompt": PROBE_TEXT, "raw": True, "stream": False, "options": options}
        reply = await self._ask_server(server, "POST", "/api/generate", _encode(body), within_s)
        try:
            completion = _decode_completion(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("its reply to a probe is no completion") from None
        if completion.model.removesuffix(LATEST) != name.removesuffix(LATEST):
            raise AnotherModel("it answers a probe with another model")
        return 0.0

    def _read(self, digest: str) -> dict[str, bytes]:
        """Return the files of an adapter by their names.

        Raises AdapterRejected: when the adapter's files are damaged.
        Raises StoreFailure: when the store does not give the adapter.
        Raises OSError: when a file cannot be read.
        """
        with self._content(digest) as folder:
            return {name: (folder / name).read_bytes() for name in FILE_NAMES}

    async def _ask_server(self, server: Server, method: str, path: str, body: bytes, within_s: float) -> bytes:
        reply = await server.ask_whole(method, path, body, within_s=within_s)
        if reply.status not in (200, 201):
            raise ServerRefused(reply.status, text=text_of(reply.body))
        return reply.body


def adapters_among(names: list[str]) -> frozenset[str]:
    """Return the digests of the adapters among the names of a server's models."""
    return frozenset(name for each in names if is_digest(name := each.removesuffix(LATEST)))
