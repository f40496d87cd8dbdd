"""The adapters of Triton's models: those that its operator gave it, each named in requests, none loaded by a gateway.

vLLM's backend has them by name (`multi_lora.json`), which is the digest of the content. TensorRT-LLM has them in a
cache by number (`lora_task_id`): Triton takes no 16-bit floats as JSON, and no binary inputs of a model that streams,
so their weights are sent over gRPC by the operator, under the number that `task_id_of` gives. By their sources, neither
answers a request for an unknown name; a gateway first tests that with a name that no adapter has.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.backends.foreign.driver import ServerInfo
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, ServerRefused
from gateway.backends.foreign.server import Server

PROBE_TEXT = "The"
"""The prompt of a probe."""

TASK_DIGITS = 15
"""Digits of a digest that are the number of an adapter at TensorRT-LLM, so that the number fits 63 bits."""

MISSING = re.compile(
    r"LoRA task \d+ not found in cache|LoRA \S+ is not supported|LoRA feature is not enabled", re.IGNORECASE
)
"""The errors by which TensorRT-LLM and vLLM's backend say that they do not have an adapter."""


class _Completion(msgspec.Struct, frozen=True):
    """A completion, with only the fields that are read."""

    text_output: str | None = None
    error: str | None = None


_encode = msgspec.json.Encoder().encode


class KserveAdapters:
    """The `AdapterWay` of Triton."""

    can_load = False
    takes_names = True
    has_to_differ = False
    missing: re.Pattern[str] | None = MISSING

    def __init__(self, served_model: str) -> None:
        self._served_model = served_model

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Raise AssertionError: Triton has the adapters that its operator gave it, and none is loaded by a gateway."""
        raise AssertionError("a server has the adapters that its operator gave it")

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Raise AssertionError: Triton keeps the adapters that its operator gave it."""
        raise AssertionError("a server keeps the adapters that its operator gave it")

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token; return 0.0, since Triton's replies have no log-probabilities."""
        is_vllm = "sampling_parameters" in info.inputs
        given = adapter_inputs(digest, info)
        body: dict[str, Any] = {"text_input": PROBE_TEXT, "stream": True}
        if is_vllm:
            body["sampling_parameters"] = _encode({"max_tokens": 1, "temperature": 0.0, **given}).decode()
        else:
            body |= {"max_tokens": 1, "top_k": 1, **given}
        path = f"/v2/models/{self._served_model or info.served_model}/generate_stream"
        reply = await server.ask_whole("POST", path, _encode(body), within_s=within_s)
        for line in reply.body.splitlines() if reply.status == 200 else [reply.body]:
            self._check(line.removeprefix(b"data:").strip(), reply.status)
        return 0.0

    def _check(self, data: bytes, status: int) -> None:
        """Raise ServerRefused if a line of a reply to a probe is an error, BadReply if it breaks the protocol."""
        if not data and status == 200:
            return
        try:
            completion = msgspec.json.decode(data, type=_Completion)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if status == 200:
                raise BadReply("its reply to a probe is no completion") from None
            raise ServerRefused(status, text=text_of(data)) from None
        if completion.error is not None or status != 200:
            text = completion.error or text_of(data)
            raise missing_adapter(text) or ServerRefused(500 if status == 200 else status, text=text)


def adapter_inputs(digest: str, info: ServerInfo) -> dict[str, Any]:
    """Return the part of a request that names an adapter: a parameter of vLLM's backend, or an input of TensorRT-LLM.

    digest: "" is the base.
    """
    if not digest:
        return {}
    return {"lora_name": digest} if "sampling_parameters" in info.inputs else {"lora_task_id": task_id_of(digest)}


def task_id_of(digest: str) -> int:
    """Return the number of an adapter at TensorRT-LLM."""
    return int(digest[:TASK_DIGITS], 16)


def missing_adapter(text: str) -> ServerRefused | None:
    """Return an error if a server's words say that it lacks the adapter; else None."""
    return ServerRefused(404, text=text) if MISSING.search(text) else None
