"""The engine as a process, used over its socket: more adapters than slots, arrivals in turn, an abort, a drain.

On a CPU everywhere, and on a GPU where there is one.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
import zmq

from engine.protocol import (
    HEARTBEAT_INTERVAL_S,
    Abort,
    AckUsage,
    EngineStats,
    GenerateRequest,
    Heartbeat,
    StepOutputs,
    Submit,
    Welcome,
)
from tests.engine.gateway import Gateway
from tests.engine.harness import Answer, collect, greedy
from tests.engine.lora.tenants import LORAS, Tenants
from tests.engine.reference import Claim, assert_greedy_follows
from tests.patience import PATIENCE_S

CONTEXT = 512
NUM_SLOTS = 3
FLAGS = (
    f"--dtype float32 --quantization none --max-model-len {CONTEXT} --max-num-seqs 8 --max-batched-tokens 64 "
    "--num-threads 1 "
    f"--kv-cache-bytes {4 << 20} --adapter-device-bytes {4 << 20} --max-adapters {NUM_SLOTS} --max-adapter-rank 16"
)
NAMES = ["", *LORAS]
NUM_TOKENS, NUM_KEPT = 12, 5
GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


class Conversation:
    """The gateway's side of a connection to an engine, which sends heartbeats and records messages."""

    def __init__(self, gateway: Gateway, process: subprocess.Popen[bytes], log: Path) -> None:
        self.gateway = gateway
        self.outputs: list[StepOutputs] = []
        self.num_tokens: Counter[str] = Counter()
        self.ended: list[str] = []
        self.stats = EngineStats()
        self.welcome: Welcome | None = None
        self._process = process
        self._log = log
        self._num_beats = 0
        self._beaten_s = 0.0

    def receive_until(self, has_come: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not has_come():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until_s, self._log.read_text()
            if time.monotonic() - self._beaten_s > HEARTBEAT_INTERVAL_S / 2 and self.welcome is not None:
                self.gateway.send(Heartbeat(self._num_beats))
                self._num_beats, self._beaten_s = self._num_beats + 1, time.monotonic()
            self._take(self.gateway.receive_any(HEARTBEAT_INTERVAL_S / 4))

    def receive_step(self) -> None:
        before = len(self.outputs)
        self.receive_until(lambda: len(self.outputs) > before)

    def acknowledge(self, request_ids: list[str]) -> None:
        self.gateway.send(AckUsage([(request_id, 0) for request_id in request_ids]))

    def _take(self, message: object) -> None:
        match message:
            case Welcome():
                self.welcome = message
            case Heartbeat(stats=EngineStats() as stats):
                self.stats = stats
            case StepOutputs(deltas, finals):
                self.outputs.append(message)
                for delta in deltas:
                    self.num_tokens[delta.request_id] += len(delta.token_ids)
                self.ended += [final.request_id for final in finals]


class Outcome(msgspec.Struct, frozen=True):
    """The recorded outcome of all requests."""

    requests: dict[str, GenerateRequest]
    ended: list[str]
    answers: dict[str, Answer]
    kept: EngineStats
    """The engine's statistics before usage was acknowledged."""
    acknowledged: EngineStats
    """The engine's statistics after usage was acknowledged."""
    drained: Answer
    """The answer to a request that ran while the engine was asked to end."""
    exit_code: int
    """The exit code of the engine's process."""


def arrivals(tenants: Tenants) -> list[GenerateRequest]:
    """Return requests of every tenant in random order, the first of which is to be aborted.

    Each tenant has greedy requests, with prompts of one chunk and of several, and a seeded request twice.
    """
    rnd = random.Random(7)
    made = []
    for name in NAMES:
        adapter = tenants.digests[name]
        for length in (1, 19, 90):
            prompt = [rnd.randrange(199) for _ in range(length)]
            made.append(greedy(f"greedy {length} {name}", prompt, NUM_TOKENS, adapter=adapter))
        prompt, seed = [rnd.randrange(199) for _ in range(7)], rnd.randrange(1 << 60)
        drawn = {"adapter": adapter, "temperature": 1.0, "seed": seed}
        made += [greedy(f"{turn} {name}", prompt, NUM_TOKENS, **drawn) for turn in ("first", "second")]
    rnd.shuffle(made)
    return [greedy("aborted", [1, 2, 3], CONTEXT - 16, adapter=tenants.digests["mlp-r7"]), *made]


def converse(tenants: Tenants, talk: Conversation, process: subprocess.Popen[bytes]) -> Outcome:
    """Send one request after each step of the engine, and return the recorded outcome."""
    requests = {request.request_id: request for request in arrivals(tenants)}
    talk.gateway.hello()
    talk.receive_until(lambda: talk.welcome is not None)
    for request in requests.values():
        talk.gateway.send(Submit(request))
        talk.receive_step()
        if request.request_id == "aborted":
            talk.receive_until(lambda: talk.num_tokens["aborted"] > NUM_KEPT)
            talk.gateway.send(Abort("aborted", num_kept_tokens=NUM_KEPT))
    talk.receive_until(lambda: set(talk.ended) >= requests.keys())
    talk.receive_until(lambda: talk.stats.unacked_usage == len(requests))
    kept = talk.stats
    talk.acknowledge(list(requests))
    talk.receive_until(lambda: talk.stats.unacked_usage == 0)
    acknowledged = talk.stats
    talk.gateway.send(Submit(greedy("drained", [4, 5, 6], CONTEXT - 16)))
    talk.receive_until(lambda: talk.num_tokens["drained"] > 0)
    process.send_signal(signal.SIGTERM)
    talk.receive_until(lambda: "drained" in talk.ended)
    talk.acknowledge(["drained"])
    exit_code = process.wait(PATIENCE_S)
    answers = collect(talk.outputs)
    return Outcome(requests, talk.ended, answers, kept, acknowledged, answers.pop("drained"), exit_code)


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"), "llama-two-heads")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=GPU)])
def seen(request: pytest.FixtureRequest, tenants: Tenants) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="lorikeet-") as name:  # a socket's path is short
        log, endpoint = Path(name) / "log", f"ipc://{name}/engine"
        command = [sys.executable, "-m", "engine", "--device", request.param, "--endpoint", endpoint, *FLAGS.split()]
        command += ["--model-dir", str(tenants.model_dir), "--adapter-store", str(tenants.store_dir)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        gateway = Gateway(context, endpoint)
        talk = Conversation(gateway, process, log)
        try:
            found = converse(tenants, talk, process)
            assert talk.welcome is not None and (talk.welcome.device == "cpu") == (request.param == "cpu")
            yield found
        finally:
            process.kill()
            process.wait()
            gateway.socket.close()
            context.term()


def test_every_request_ends_once_and_is_billed_for_the_tokens_that_came(seen: Outcome) -> None:
    assert Counter(seen.ended) == Counter([*seen.requests, "drained"])
    assert seen.answers.keys() == seen.requests.keys()
    for name, request in seen.requests.items():
        answer, usage = seen.answers[name], seen.answers[name].final.usage
        num_asked = request.sampling.max_tokens
        assert seen.answers[name].final.error is None
        assert usage.prompt_tokens == len(request.prompt_token_ids)
        assert usage.completion_tokens + usage.discarded_tokens == len(answer.token_ids) == answer.counts[-1]
        assert answer.counts == sorted(set(answer.counts))
        expected = ("stop", NUM_KEPT) if name == "aborted" else ("length", num_asked)
        assert (answer.final.finish_reason, usage.completion_tokens) == expected
        assert len(answer.token_ids) < num_asked or name != "aborted"


def test_greedy_texts_are_those_of_every_adapters_own_model(seen: Outcome, tenants: Tenants) -> None:
    for name in NAMES:
        asked = [request for request in seen.requests.values() if request.adapter == tenants.digests[name]]
        chosen = [request for request in asked if request.sampling.temperature == 0 and request.request_id != "aborted"]
        answers = [seen.answers[request.request_id] for request in chosen]
        claims = [Claim(r.prompt_token_ids, a.token_ids, a.logprobs) for r, a in zip(chosen, answers, strict=True)]
        assert len(claims) == 3
        assert_greedy_follows(tenants.models[name], claims, tolerance=1e-4)


def test_the_same_seed_says_the_same_beside_other_neighbors(seen: Outcome) -> None:
    texts = {name: seen.answers[f"first {name}"].token_ids for name in NAMES}
    assert texts == {name: seen.answers[f"second {name}"].token_ids for name in NAMES}
    assert len(set(map(tuple, texts.values()))) == len(NAMES)


def test_adapters_took_turns_in_fewer_slots(seen: Outcome) -> None:
    assert seen.kept.adapter_slots_total == NUM_SLOTS < len(LORAS)
    assert seen.kept.adapter_loads_total >= len(LORAS)
    assert seen.kept.adapter_evictions_total >= len(LORAS) - NUM_SLOTS


def test_usage_is_kept_until_it_is_acknowledged_and_adds_up(seen: Outcome) -> None:
    usages = [answer.final.usage for answer in seen.answers.values()]
    assert (seen.kept.unacked_usage, seen.acknowledged.unacked_usage) == (len(usages), 0)
    assert seen.acknowledged.dropped_usage_total == 0
    assert seen.kept.ended_prompt_tokens_total == sum(usage.prompt_tokens for usage in usages)
    num_completed = sum(usage.completion_tokens + usage.discarded_tokens for usage in usages)
    assert seen.kept.ended_completion_tokens_total == num_completed


def test_an_engine_told_to_end_completes_its_requests_first_and_exits_well(seen: Outcome) -> None:
    assert seen.drained.final.finish_reason == "length"
    assert len(seen.drained.token_ids) == seen.drained.final.usage.completion_tokens == CONTEXT - 16
    assert seen.exit_code == 0
