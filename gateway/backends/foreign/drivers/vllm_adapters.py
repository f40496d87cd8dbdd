"""The adapters of vLLM's server (0.11 and later): loaded and unloaded by name while it runs, listed beside its model.

It needs `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and the folder of the adapter store. A name and its
path are the digest of the content, and neither is ever used for another: weights that vLLM still holds under the name
after an unload (vllm-project/vllm#54839) are the right ones.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from adapters.store import is_digest
from gateway.backends.foreign.driver import ServerInfo
from gateway.backends.foreign.drivers.openai_probe import probe_completion
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import ServerRefused
from gateway.backends.foreign.server import Reply, Server
from gateway.domain.pools.foreign_settings import ForeignSettings


class _Model(msgspec.Struct, frozen=True):
    """A model or an adapter of the server's list."""

    id: str = ""
    root: str | None = None
    """The path of an adapter's content."""


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


_decode_models = msgspec.json.Decoder(_Models).decode
_encode = msgspec.json.Encoder().encode


class VllmAdapters:
    """The `AdapterWay` of vLLM."""

    can_load = True
    takes_names = True
    missing: re.Pattern[str] | None = None
    prefix = "/v1"
    """The beginning of the paths by which adapters are loaded and unloaded."""

    def __init__(self, settings: ForeignSettings, *, has_to_differ: bool = False) -> None:
        self.has_to_differ = has_to_differ
        self._folder = settings.adapter_folder.rstrip("/")
        self._served_model = settings.served_model

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Have the server load the adapter from the folder that both share; one that it has loaded stays."""
        body = {"lora_name": digest, "lora_path": f"{self._folder}/{digest}"}
        reply = await self._post(server, "load_lora_adapter", body, within_s)
        if reply.status == 200 or (reply.status == 400 and digest in await self._list_adapters(server, within_s)):
            return
        raise ServerRefused(reply.status, text=text_of(reply.body))

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Have the server unload the adapter; one that it has not loaded is no error."""
        reply = await self._post(server, "unload_lora_adapter", {"lora_name": digest}, within_s)
        if reply.status not in (200, 404):
            raise ServerRefused(reply.status, text=text_of(reply.body))

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token with the adapter through text completions; return its log-probability."""
        return await probe_completion(server, digest or self._served_model or info.served_model, within_s)

    async def _post(self, server: Server, verb: str, body: dict[str, Any], within_s: float) -> Reply:
        return await server.ask_whole("POST", f"{self.prefix}/{verb}", _encode(body), within_s=within_s)

    async def _list_adapters(self, server: Server, within_s: float) -> frozenset[str]:
        reply = await server.ask_whole("GET", "/v1/models", within_s=within_s)
        return self.adapters_in(reply.body)

    def adapters_in(self, models: bytes) -> frozenset[str]:
        """Return the digests of the adapters in a list of models, without those at other paths."""
        try:
            found = _decode_models(models).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return frozenset()
        return frozenset(each.id for each in found if is_digest(each.id) and each.root == f"{self._folder}/{each.id}")
