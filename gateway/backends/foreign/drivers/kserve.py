"""The driver of Triton (24.10 and later), by the generate extension of the Open Inference Protocol v2.

Text goes in and comes out. A model is one of Triton's vLLM backend, or the ensemble or BLS model of TensorRT-LLM; the
names of the model's inputs tell which of them it is.

The protocol has no chat template: a conversation is written out as lines, unless it is a prompt of one text. vLLM's
backend says why a reply ended and counts its tokens; TensorRT-LLM's says neither, so that the end of the stream is the
end of the reply, and our own count is billed.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec

from engine.protocol import FinishReason
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import AdapterWay, Driver, Framing, Pooled, Reader, Request, ServerInfo, adapter_of
from gateway.backends.foreign.drivers.kserve_adapters import KserveAdapters, adapter_inputs, missing_adapter
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, Event, Part, ReportedUsage, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.text.conversation import Conversation

FEATURES: frozenset[Feature] = frozenset({"seed"})
MAX_MODELS = 10_000

OF_VLLM = "sampling_parameters"
"""The input that only a model of Triton's vLLM backend has."""

OF_TENSORRT = "max_tokens"
"""The input that only a model of TensorRT-LLM has."""

_DONE: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
_UNFINISHED = frozenset({"", "None"})


class _Indexed(msgspec.Struct, frozen=True):
    """A model of the server's list."""

    name: str
    state: str = ""


class _Input(msgspec.Struct, frozen=True):
    """An input of a model."""

    name: str


class _Metadata(msgspec.Struct, frozen=True):
    """The description of a model, with only the fields that are read."""

    inputs: list[_Input]


class _Step(msgspec.Struct, frozen=True):
    """One event of a stream, with only the fields that are read."""

    text_output: str | None = None
    finish_reason: str = ""
    num_output_tokens: int = 0
    num_input_tokens: int = 0
    error: str | None = None


_decode_index = msgspec.json.Decoder(list[_Indexed]).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_step = msgspec.json.Decoder(_Step).decode
_encode = msgspec.json.Encoder().encode


class KserveDriver:
    """The `Driver` of Triton's generate extension."""

    framing: Framing = "events"
    max_choices = 1
    tested: VersionRange | None = VersionRange("/v2", "version", (2, 51), (2, 73))
    separates_caches = False
    takes_ids = False

    def __init__(self, pooled: Pooled) -> None:
        self._settings = pooled.settings
        self._tokenizer = pooled.model.tokenizer if pooled.has_tokenizer else None
        self.adapters: AdapterWay | None = None
        if pooled.settings.preloaded_adapters:
            self.adapters = KserveAdapters(self._settings.served_model)
        # Triton has none of OpenAI's routes at this address.
        self.generic: Driver | None = None if self.adapters is None else KserveDriver(pooled.without_adapters())

    def features(self) -> frozenset[Feature]:
        """Return the features that both backends of Triton have."""
        return FEATURES

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request for the generate extension, with the inputs of vLLM's or of TensorRT-LLM's backend."""
        inputs = _vllm_inputs(generation, info) if OF_VLLM in info.inputs else _tensorrt_inputs(generation, info)
        body = {"text_input": self._prompt(generation), "stream": True, **inputs}
        return Request(path_of(info.served_model, "generate_stream"), _encode(body))

    def reader(self, generation: Generation) -> Reader:
        """Return a reader of the extension's events."""
        return StepReader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the inputs of the model that the settings name, or of the only one that is ready."""
        name = self._settings.served_model
        if not name:
            reply = await _ask_server(server, "POST", "/v2/repository/index", within_s)
            try:
                ready = [each.name for each in _decode_index(reply)[:MAX_MODELS] if each.state == "READY"]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise BadReply("it is no server of the Open Inference Protocol") from None
            if len(ready) != 1:
                names = ", ".join(ready[:8]) or "none"
                raise BadReply(f"name the model with the setting served_model; those that are ready: {names}")
            name = ready[0]
        await _ask_server(server, "GET", path_of(name, "ready"), within_s)
        try:
            inputs = frozenset(
                each.name for each in _decode_metadata(await _ask_server(server, "GET", path_of(name), within_s)).inputs
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("it is no server of the Open Inference Protocol") from None
        if "text_input" not in inputs or inputs.isdisjoint((OF_VLLM, OF_TENSORRT)):
            raise BadReply("its model is neither one of vLLM's backend nor one of TensorRT-LLM's that takes text")
        return ServerInfo(name, adapters=None if self.adapters is not None else frozenset(), inputs=inputs)

    def _prompt(self, generation: Generation) -> str:
        """Return the text of a prompt: as the model's template wrote it where that is known."""
        if generation.prompt_text is not None:
            return generation.prompt_text
        if self._tokenizer is not None:
            return self._tokenizer.decode(generation.request.prompt_token_ids, with_special=True)
        assert generation.conversation is not None, "a prompt of token ids needs the tokenizer"
        return _written_out(generation.conversation)


class StepReader:
    """Reads the events of one reply."""

    def __init__(self, generation: Generation) -> None:
        self._max_tokens = generation.request.sampling.max_tokens
        self._generation = generation
        self._num_tokens = 0
        self._num_events = 0
        self._has_reasons = False
        self._has_ended = False

    def read(self, data: bytes) -> Event:
        """Read one event, which is a part of the text alone unless it has a reason why the choice has ended."""
        try:
            step = _decode_step(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("an event is no part of a reply") from None
        if step.error is not None:
            raise missing_adapter(step.error) or ServerRefused(500, text=step.error)
        if step.text_output is None:
            raise BadReply("an event has no text")
        self._num_events += bool(step.text_output)
        usage = None
        if step.finish_reason:  # of vLLM's backend, which counts the tokens of each event
            self._has_reasons = True
            self._num_tokens += max(0, step.num_output_tokens)
            if self._num_tokens:
                usage = ReportedUsage(self._generation.prompt_tokens_by(step.num_input_tokens), self._num_tokens)
        if step.finish_reason in _UNFINISHED:
            return Event([Part(0, step.text_output)], usage)
        reason = _DONE.get(step.finish_reason)
        if reason is None:
            raise BadReply("a choice ended for a reason that is not known")
        self._has_ended = True
        return Event([Part(0, step.text_output, finish_reason=reason)], usage, is_end=True)

    def end(self) -> Event:
        """Return the end of a reply whose server does not say why it ended: the stream has come to its own end."""
        if self._has_reasons or self._has_ended or not self._num_events:
            return Event()
        return Event([Part(0, finish_reason="length" if self._num_events >= self._max_tokens else "stop")])


def path_of(model: str, verb: str = "") -> str:
    """Return the path of a model, or of an action on it.

    verb: the action, such as `generate`; "" for the model itself.
    """
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
    return f"{path}/{verb}" if verb else path


async def _ask_server(server: Server, method: str, path: str, within_s: float) -> bytes:
    """Send a request to the server, and return the body of the reply.

    Raises ServerRefused: when the status is not 200.
    Raises ServerGone: when the server does not answer within within_s.
    """
    reply = await server.ask_whole(method, path, b"{}" if method == "POST" else b"", within_s=within_s)
    if reply.status != 200:
        raise ServerRefused(reply.status, text=text_of(reply.body))
    return reply.body


def _vllm_inputs(generation: Generation, info: ServerInfo) -> dict[str, Any]:
    sampling = generation.request.sampling
    parameters: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    penalties = {"presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty}
    parameters |= {name: value for name, value in penalties.items() if value}
    if generation.stop:
        parameters["stop"] = list(generation.stop)
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    parameters |= adapter_inputs(adapter_of(generation), info)
    asked = ("exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
    return {OF_VLLM: _encode(parameters).decode(), **{name: True for name in asked if name in info.inputs}}


def _tensorrt_inputs(generation: Generation, info: ServerInfo) -> dict[str, Any]:
    sampling = generation.request.sampling
    inputs: dict[str, Any] = {OF_TENSORRT: sampling.max_tokens, "top_p": sampling.top_p}
    if sampling.temperature > 0.0:
        inputs["temperature"] = sampling.temperature
    else:
        inputs["top_k"] = 1  # it takes no temperature of 0
    if generation.stop:
        inputs["stop_words"] = list(generation.stop)
    if sampling.presence_penalty:
        inputs["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        inputs["frequency_penalty"] = sampling.frequency_penalty
    if sampling.seed is not None:
        inputs["seed" if "seed" in info.inputs else "random_seed"] = sampling.seed
    if "exclude_input_in_output" in info.inputs:
        inputs["exclude_input_in_output"] = True
    return inputs | adapter_inputs(adapter_of(generation), info)


def _written_out(conversation: Conversation) -> str:
    """Return a conversation as a text that a model without a template goes on with."""
    lines = []
    for message in conversation.messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        lines.append(f"{str(message['role']).capitalize()}: {content or ''}")
    return "\n\n".join([*lines, "Assistant:"])
