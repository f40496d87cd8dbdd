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
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import AnotherModel, BadReply, ServerRefused
from gateway.backends.foreign.server import Reply, Server
from gateway.domain.pools.foreign_settings import ForeignSettings

PROBE_TEXT = "The"
"""The prompt of a probe."""


class _Logprobs(msgspec.Struct, frozen=True):
    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct, frozen=True):
    model: str
    choices: list[_Choice] = []


class _Model(msgspec.Struct, frozen=True):
    id: str = ""
    root: str | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_encode = msgspec.json.Encoder().encode


class VllmAdapters:
    """`AdapterWay` of vLLM."""

    can_load = True
    takes_names = True
    missing: re.Pattern[str] | None = None
    prefix = "/v1"
    """The beginning of the paths by which adapters are loaded and unloaded."""

    def __init__(self, settings: ForeignSettings) -> None:
        self._folder = settings.adapter_folder.rstrip("/")
        self._served_model = settings.served_model

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        body = {"lora_name": digest, "lora_path": f"{self._folder}/{digest}"}
        reply = await self._post(server, "load_lora_adapter", body, within_s)
        if reply.status == 200 or (reply.status == 400 and digest in await self._listed(server, within_s)):
            return
        raise ServerRefused(reply.status, text=text_of(reply.body))

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        reply = await self._post(server, "unload_lora_adapter", {"lora_name": digest}, within_s)
        if reply.status not in (200, 404):
            raise ServerRefused(reply.status, text=text_of(reply.body))

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        name = digest or self._served_model or info.served_model
        body = {"model": name, "prompt": PROBE_TEXT, "max_tokens": 1, "temperature": 0.0, "logprobs": 1}
        reply = await server.whole("POST", "/v1/completions", _encode(body), within_s=within_s)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            completion = _decode_completion(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("its reply to a probe is no completion") from None
        if completion.model != name:
            raise AnotherModel("it answers a probe with another model")
        logprobs = completion.choices[0].logprobs if completion.choices else None
        found = logprobs.token_logprobs[0] if logprobs is not None and logprobs.token_logprobs else None
        return found or 0.0

    async def _post(self, server: Server, verb: str, body: dict[str, Any], within_s: float) -> Reply:
        return await server.whole("POST", f"{self.prefix}/{verb}", _encode(body), within_s=within_s)

    async def _listed(self, server: Server, within_s: float) -> frozenset[str]:
        reply = await server.whole("GET", "/v1/models", within_s=within_s)
        return self.adapters_in(reply.body)

    def adapters_in(self, models: bytes) -> frozenset[str]:
        """Return the digests of the adapters in a list of models. One of another path is not ours."""
        try:
            found = _decode_models(models).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return frozenset()
        return frozenset(each.id for each in found if is_digest(each.id) and each.root == f"{self._folder}/{each.id}")
