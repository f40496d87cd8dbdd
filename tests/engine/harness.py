"""A whole engine in this process, without its socket: requests in, answers out, arrivals at chosen steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import BuildDevice, PausableStep, Step
from engine.mailbox import Drain, Event, Mailbox
from engine.protocol import Final, GenerateRequest, SamplingParams, StepOutputs, TokenLogprobs
from engine.sequence import Plan
from engine.setup import build_core


class Answer(msgspec.Struct):
    """All output of the engine for one request, in order."""

    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprobs] = msgspec.field(default_factory=list)
    counts: list[int] = msgspec.field(default_factory=list)
    finals: list[Final] = msgspec.field(default_factory=list)

    @property
    def final(self) -> Final:
        (final,) = self.finals
        return final


class _ArrivalsByStep:
    """A runner that also submits the requests due at step k when step k is launched.

    on_plan: called with each plan.
    """

    def __init__(
        self,
        core: EngineCore,
        mailbox: Mailbox,
        later: Mapping[int, Sequence[GenerateRequest]],
        on_plan: Callable[[Plan], None],
    ) -> None:
        self._runner = core._runner
        self.runs_ahead = self._runner.runs_ahead
        self._mailbox = mailbox
        self._later = dict(later)
        self._on_plan = on_plan
        self._step = 0

    def launches_fast(self, plan: Plan) -> bool:
        return self._runner.launches_fast(plan)

    def launch(self, plan: Plan) -> Step:
        self._note(plan)
        return self._runner.launch(plan)

    def begin(self, plan: Plan) -> PausableStep | None:
        self._note(plan)
        return self._runner.begin(plan)

    def _note(self, plan: Plan) -> None:
        self._step += 1
        for due in [step for step in self._later if step <= self._step]:
            for request in self._later.pop(due):
                self._mailbox.command(request)
        self._on_plan(plan)


def run_engine(
    config: EngineConfig,
    requests: Sequence[GenerateRequest],
    later: Mapping[int, Sequence[GenerateRequest]] | None = None,
    preload: Iterable[str] = (),
    build_device: BuildDevice | None = None,
) -> dict[str, Answer]:
    """Run all requests to their end; return the answers by request id.

    later: requests that arrive while a step runs, by the step's number.
    preload: digests of adapters to load before.
    build_device: makes the device; None: the engine's own code does.
    """
    return collect(run_events(config, requests, later, preload, build_device))


def run_events(
    config: EngineConfig,
    requests: Sequence[GenerateRequest],
    later: Mapping[int, Sequence[GenerateRequest]] | None = None,
    preload: Iterable[str] = (),
    build_device: BuildDevice | None = None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> list[Event]:
    """Run all requests as `run_engine` does; return everything the engine sent, in order.

    on_plan: called with each plan as it is launched. later, preload, build_device: as for `run_engine`.
    """
    with contextlib.closing(Mailbox()) as mailbox:
        core, _ = build_core(config, mailbox, build_device)
        for digest in preload:
            core.preload(digest)
        core._runner = _ArrivalsByStep(core, mailbox, later or {}, on_plan)
        for request in requests:
            mailbox.command(request)
        mailbox.command(Drain())
        core.run()
        return mailbox.take_events()


def collect(events: Sequence[object]) -> dict[str, Answer]:
    """Return the answers in an engine's events, by request id."""
    answers: dict[str, Answer] = {}
    for event in events:
        if isinstance(event, StepOutputs):
            for delta in event.deltas:
                answer = answers.setdefault(delta.request_id, Answer())
                answer.token_ids += delta.token_ids
                answer.logprobs += delta.logprobs or []
                answer.counts.append(delta.num_completion_tokens)
            for final in event.finals:
                answers.setdefault(final.request_id, Answer()).finals.append(final)
    return answers


def engine_config(model_dir: Path, adapter_store: Path, **changes: object) -> EngineConfig:
    """Return a configuration for fp32 on the CPU with a small cache, so that tests compare numbers and start fast."""
    settings: dict[str, object] = {
        "model_dir": str(model_dir),
        "adapter_store": str(adapter_store),
        "endpoint": "inproc://unused",
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_bytes": 64 << 20,
        "num_threads": 1,
        "quantization": "none",
    }
    return msgspec.convert(settings | changes, EngineConfig)


def greedy(request_id: str, prompt: Sequence[int], max_tokens: int, **changes: object) -> GenerateRequest:
    sampling = {"max_tokens": max_tokens, "temperature": 0.0, "num_logprobs": 2} | {
        key: changes.pop(key) for key in list(changes) if key in SamplingParams.__struct_fields__
    }
    fields = {"request_id": request_id, "prompt_token_ids": list(prompt), "tenant": "t", "sampling": sampling}
    return msgspec.convert(fields | changes, GenerateRequest)
