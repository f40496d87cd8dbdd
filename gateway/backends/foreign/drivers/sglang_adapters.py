"""The adapters of SGLang's server (0.5.4 and later): loaded and unloaded by name while it runs.

It needs `--enable-lora`, `--max-lora-rank` and `--lora-target-modules`, one tokenizer worker, and the folder of the
adapter store. It does not list adapters, and drops the least recently used one by itself beyond `--max-loaded-loras`:
an adapter that it has dropped is loaded again when a request for it fails.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.backends.foreign.driver import ServerInfo
from gateway.backends.foreign.drivers.openai_probe import probe_completion
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.domain.pools.foreign_settings import ForeignSettings

PROBE_TEXT = "The"
"""The prompt of a probe."""

UNKNOWN_ADAPTER = "LoRA adapters are not loaded"
"""Words of the error for an adapter that the server does not have, or has no more."""

UNFIT = ("rank", "target module", "target_module", "incompatible", "not compatible")
"""Words that show that a refusal is about the adapter; others may be about the folder, which the operator can mend."""


class _Change(msgspec.Struct, frozen=True):
    """The answer to a load or an unload."""

    success: bool = False
    loaded_adapters: dict[str, Any] | None = None


class _Meta(msgspec.Struct, frozen=True):
    """The log-probabilities of a completion: for each token the log-probability, the id, and the text."""

    output_token_logprobs: list[tuple[float | None, int, Any]] = []


class _Completion(msgspec.Struct, frozen=True):
    """A completion, with only the fields that are read."""

    meta_info: _Meta


_decode_change = msgspec.json.Decoder(_Change).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode
_encode = msgspec.json.Encoder().encode


class SglangAdapters:
    """The `AdapterWay` of SGLang."""

    can_load = True
    takes_names = True
    has_to_differ = False
    missing: re.Pattern[str] | None = None

    def __init__(self, settings: ForeignSettings) -> None:
        self._folder = settings.adapter_folder.rstrip("/")

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Have the server load the adapter from the folder that both share; one that it has loaded stays."""
        body = {"lora_name": digest, "lora_path": f"{self._folder}/{digest}"}
        await self._change(server, "/load_lora_adapter", body, digest, is_loaded=True, within_s=within_s)

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Have the server unload the adapter; one that it has not loaded is no error."""
        body = {"lora_name": digest}
        await self._change(server, "/unload_lora_adapter", body, digest, is_loaded=False, within_s=within_s)

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token with the adapter through `/generate`; return its log-probability."""
        parameters = {"max_new_tokens": 1, "temperature": 0.0}
        body: dict[str, Any] = {"text": PROBE_TEXT, "sampling_params": parameters, "return_logprob": True}
        if digest:
            body["lora_path"] = digest
        reply = await server.ask_whole("POST", "/generate", _encode(body), within_s=within_s)
        if reply.status != 200:
            text = text_of(reply.body)  # it may have dropped the adapter since that was loaded
            raise ServerRefused(404 if UNKNOWN_ADAPTER in text else reply.status, text=text)
        try:
            found = _decode_completion(reply.body).meta_info.output_token_logprobs
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("its reply to a probe is no completion") from None
        return (found[0][0] or 0.0) if found else 0.0

    async def _change(
        self, server: Server, path: str, body: dict[str, Any], digest: str, *, is_loaded: bool, within_s: float
    ) -> None:
        """Have an adapter loaded or unloaded by a request to a path with a body.

        is_loaded: the wanted state: True: loaded. A refusal is no error if the adapter is in that state. within_s: the
        most seconds to wait for the answer.
        """
        reply = await server.ask_whole("POST", path, _encode(body), within_s=within_s)
        if reply.status == 200:
            return
        try:
            loaded = _decode_change(reply.body).loaded_adapters
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            loaded = None
        if loaded is None or (digest in loaded) != is_loaded:
            text = text_of(reply.body)
            is_unfit = any(word in text for word in UNFIT)
            raise ServerRefused(404 if reply.status == 400 and not is_unfit else reply.status, text=text)


class ProvedSglangAdapters(SglangAdapters):
    """The `AdapterWay` of versions with which `SglangAdapters` was not tried.

    Requests name adapters as models.
    """

    has_to_differ = True
    missing: re.Pattern[str] | None = re.compile(UNKNOWN_ADAPTER)

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token with the adapter through text completions; return its log-probability."""
        model = name_of(info, digest) if digest else info.served_model
        return await probe_completion(server, model, within_s)


def name_of(info: ServerInfo, digest: str) -> str:
    """Return the name by which SGLang knows an adapter as a model."""
    return f"{info.served_model}:{digest}"
