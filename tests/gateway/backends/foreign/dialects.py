"""The protocols of the servers for which there are drivers, as fakes speak them: written from the API of each server.

vLLM 0.32, SGLang 0.5.23, llama.cpp of late 2026, TGI 3.3, Ollama 0.12, Triton 26.01 with its vLLM
backend (`src/utils/request.py` there), and Lorikeet itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.domain.pools.drivers import Driver
from tests.gateway.backends.foreign.fake import chunk

SSE = b"text/event-stream"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
PROMPT = 9
"""The number of prompt tokens that each fake reports."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one server's protocol, as the server sends them."""

    driver: Driver
    path: str
    """The path of chat requests for a model whose tokenizer is unknown."""
    part: Callable[[str, int], Any]
    """The function that returns the event of a piece of text, from the text and the number of tokens so far."""
    finish: Callable[[str, int], list[Any]]
    """The function that returns the events of an end, from a reason of this protocol and the number of tokens."""
    reasons: dict[str, str]
    """The protocol's names for our finish reasons."""
    error: Any
    """An event with which the server reports a failure within a reply."""
    asked: Callable[[dict[str, Any]], dict[str, Any]]
    """The function that reads `max_tokens`, `stop` and `seed` from a request's body."""
    refusal: Callable[[str], Any]
    """The function that returns the body of an error reply, from a text."""
    facts: dict[str, Any] = {}
    is_lines: bool = False
    has_mark: bool = True
    """True where the event `[DONE]` follows the last event."""
    can_have_no_usage: bool = True

    @property
    def head(self) -> bytes:
        return HEAD % (b"application/x-ndjson" if self.is_lines else SSE)

    def event(self, value: Any) -> bytes:
        """Return an event as a chunk of the body."""
        text = value if isinstance(value, str) else json.dumps(value)
        return chunk(f"{text}\n".encode() if self.is_lines else f"data: {text}\n\n".encode())

    def saying(self, *words: str, reason: str = "stop", usage: bool = True) -> list[bytes]:
        """Return the parts of a whole answer: the head, the words, the end.

        reason: the finish reason. usage: True: the end has the usage.
        """
        sent = [self.head]
        sent += [self.event(self.part(word, place + 1)) for place, word in enumerate(words)]
        ends = self.finish(self.reasons.get(reason, reason), len(words))
        sent += [self.event(each) for each in (ends if usage else [_without_usage(each) for each in ends])]
        return [*sent, self.event("[DONE]") + END if self.has_mark else END]


def _without_usage(event: Any) -> Any:
    gone = ("usage", "prompt_eval_count", "eval_count")
    return {name: value for name, value in event.items() if name not in gone}


def _chat_part(text: str, num_tokens: int) -> Any:
    return {"model": "theirs", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def _running_part(text: str, num_tokens: int) -> Any:
    return _chat_part(text, num_tokens) | {"usage": _usage(num_tokens)}


def _usage(num_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": PROMPT, "completion_tokens": num_tokens, "total_tokens": PROMPT + num_tokens}


def _chat_finish(reason: str, num_tokens: int) -> list[Any]:
    return [
        {"model": "theirs", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"model": "theirs", "choices": [], "usage": _usage(num_tokens)},
    ]


def _kserve_part(text: str, num_tokens: int, **fields: Any) -> Any:
    said = {"finish_reason": "None", "num_input_tokens": PROMPT, "num_output_tokens": 1} | fields
    return {"model_name": "theirs", "model_version": "1", "text_output": text} | said


def _kserve_finish(reason: str, num_tokens: int) -> list[Any]:
    """Return the last response, which has no count of tokens, since the parts before it have counted them.

    A false number of tokens, over 999, is put in, for tests of counts that cannot be true.
    """
    return [_kserve_part("", num_tokens, finish_reason=reason, num_output_tokens=num_tokens if num_tokens > 999 else 0)]


def _kserve_asked(body: dict[str, Any]) -> dict[str, Any]:
    parameters = json.loads(body["sampling_parameters"])
    return {name: parameters.get(name) for name in ("max_tokens", "stop", "seed")}


KSERVE_INPUTS = ("text_input", "stream", "sampling_parameters", "return_finish_reason", "return_num_output_tokens")


def kserve_facts(*inputs: str) -> dict[str, Any]:
    """Return Triton's answers about its only model, which takes these inputs."""
    metadata = {"name": "theirs", "versions": ["1"], "inputs": [{"name": each} for each in inputs]}
    return {
        "/v2/repository/index": [{"name": "theirs", "version": "1", "state": "READY"}, {"name": "other"}],
        "/v2/models/theirs/ready": {},
        "/v2/models/theirs": metadata,
    }


def _openai_asked(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body.get(name) for name in ("max_tokens", "stop", "seed")}


def _openai_error(message: str) -> Any:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


def _ollama_asked(body: dict[str, Any]) -> dict[str, Any]:
    options = body["options"]
    return {"max_tokens": options["num_predict"], "stop": options.get("stop"), "seed": options.get("seed")}


OPENAI_REASONS = {"stop": "stop", "length": "length"}


def _openai_dialect(driver: Driver, **fields: Any) -> Dialect:
    defaults: dict[str, Any] = {
        "path": "/v1/chat/completions",
        "part": _chat_part,
        "finish": _chat_finish,
        "reasons": OPENAI_REASONS,
        "error": _openai_error("CUDA error"),
        "asked": _openai_asked,
        "refusal": _openai_error,
    }
    return Dialect(driver=driver, **(defaults | fields))


DIALECTS: dict[Driver, Dialect] = {
    each.driver: each
    for each in (
        _openai_dialect("openai"),
        _openai_dialect("vllm", part=_running_part, can_have_no_usage=False),
        _openai_dialect("lorikeet-gateway", part=_running_part, can_have_no_usage=False),
        _openai_dialect(
            "sglang",
            part=_running_part,
            can_have_no_usage=False,
            refusal=lambda message: {"object": "error", "message": message, "type": "BadRequestError", "code": 400},
        ),
        _openai_dialect(
            "llamacpp", facts={"/props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}}
        ),
        _openai_dialect(
            "tgi",
            reasons={"stop": "eos_token", "length": "length"},
            error={"error": "Request failed during generation: CUDA error", "error_type": "generation"},
            refusal=lambda message: {"error": message, "error_type": "validation"},
            facts={
                "/health": {},
                "/info": {"model_id": "theirs", "max_total_tokens": 4096, "max_concurrent_requests": 128},
            },
        ),
        Dialect(
            driver="kserve",
            path="/v2/models/theirs/generate_stream",
            part=_kserve_part,
            finish=_kserve_finish,
            reasons=OPENAI_REASONS,
            error={"error": "Error generating stream: CUDA error"},
            asked=_kserve_asked,
            refusal=lambda message: {"error": message},
            facts=kserve_facts(*KSERVE_INPUTS),
            has_mark=False,
            can_have_no_usage=False,
        ),
        Dialect(
            driver="ollama",
            path="/api/chat",
            part=lambda text, num: {
                "model": "theirs",
                "message": {"role": "assistant", "content": text},
                "done": False,
            },
            finish=lambda reason, num: [
                {
                    "model": "theirs",
                    "message": {"role": "assistant", "content": ""},
                    "done": True,
                    "done_reason": reason,
                    "prompt_eval_count": PROMPT,
                    "eval_count": num,
                }
            ],
            reasons=OPENAI_REASONS,
            error={"error": "an error was encountered while running the model: CUDA error"},
            asked=_ollama_asked,
            refusal=lambda message: {"error": message},
            facts={"/api/tags": {"models": [{"name": "theirs"}]}},
            is_lines=True,
            has_mark=False,
        ),
    )
}
