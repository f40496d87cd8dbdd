"""A real, tiny engine without a model: the whole protocol over a real socket, deterministic tokens, no torch.

It serves the gateway's tests and benchmarks. The completion repeats the prompt's tokens; an adapter rotates them by a
number taken from its digest, so that an answer tells which adapter gave it.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time

import msgspec

from engine.config import load_model_config, model_digest
from engine.mailbox import Drain, Drained, Mailbox
from engine.protocol import (
    Abort,
    AdapterStatus,
    Delta,
    EngineLimits,
    EngineStats,
    Final,
    FinishReason,
    GenerateRequest,
    LoadAdapter,
    StepOutputs,
    UnloadAdapter,
    Usage,
)
from engine.server import EngineServer


def fake_token(request: GenerateRequest, index: int) -> int:
    """Completion token `index` of a request: what any test may expect."""
    prompt = request.prompt_token_ids
    rotation = int(request.adapter[:8], 16) if request.adapter else 0
    return prompt[(index + rotation) % len(prompt)]


class _Running(msgspec.Struct):
    request: GenerateRequest
    started_s: float
    num_sent: int = 0


class FakeCore:
    """One token for every running request each step; steps last 1 / tokens_per_s seconds."""

    def __init__(self, mailbox: Mailbox, tokens_per_s: float) -> None:
        self._mailbox = mailbox
        self._step_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self._running: dict[str, _Running] = {}
        self._resident: set[str] = set()
        self._num_tokens = 0
        self._draining = False

    def run(self) -> None:
        while not (self._draining and not self._running):
            for command in self._mailbox.take_commands(0.0 if self._running else 0.5):
                self._obey(command)
            if self._running:
                time.sleep(self._step_s)
                self._mailbox.post(self._step())
                self._mailbox.post(self._stats())
        self._mailbox.post(Drained())

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                self._running[command.request_id] = _Running(command, time.monotonic())
                if command.adapter:
                    self._resident.add(command.adapter)
            case Abort(request_id, num_kept):
                running = self._running.pop(request_id, None)
                if running is not None:
                    reason: FinishReason = "abort" if num_kept is None else "stop"
                    final = self._final(running, reason, num_kept)
                    self._mailbox.post(StepOutputs(finals=[final]))
            case LoadAdapter(digest):
                self._resident.add(digest)
                self._mailbox.post(AdapterStatus(digest, True))
            case UnloadAdapter(digest):
                self._resident.discard(digest)
                self._mailbox.post(AdapterStatus(digest, False))
            case Drain():
                self._draining = True

    def _step(self) -> StepOutputs:
        outputs = StepOutputs([], [])
        for request_id, running in list(self._running.items()):
            sampling = running.request.sampling
            token = fake_token(running.request, running.num_sent)
            running.num_sent += 1
            self._num_tokens += 1
            stopped = token in sampling.stop_token_ids and running.num_sent > sampling.min_tokens
            shown = [] if stopped else [token]
            outputs.deltas.append(Delta(request_id, shown, running.num_sent))
            if stopped or running.num_sent == sampling.max_tokens:
                outputs.finals.append(self._final(running, "stop" if stopped else "length", None))
                del self._running[request_id]
        return outputs

    def _final(self, running: _Running, reason: FinishReason, num_kept: int | None) -> Final:
        kept = running.num_sent if num_kept is None else min(num_kept, running.num_sent)
        usage = Usage(
            prompt_tokens=len(running.request.prompt_token_ids),
            completion_tokens=kept,
            discarded_tokens=running.num_sent - kept,
            decode_ms=(time.monotonic() - running.started_s) * 1e3,
        )
        return Final(running.request.request_id, reason, usage)

    def _stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            generation_tokens_total=self._num_tokens,
            resident_adapters=sorted(self._resident),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.fake", description=__doc__)
    parser.add_argument("--endpoint", required=True, help="ZeroMQ address to listen on, such as ipc:///run/engine.sock")
    parser.add_argument("--model-dir", required=True, help="folder whose config.json the gateway serves")
    parser.add_argument("--tokens-per-s", type=float, default=0.0, help="steps per second; 0 is as fast as it goes")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-waiting", type=int, default=512)
    args = parser.parse_args()
    model = load_model_config(args.model_dir)
    limits = EngineLimits(model.max_position, args.max_num_seqs, args.max_waiting, block_size=16, num_blocks=4096)
    mailbox = Mailbox()
    server = EngineServer(args.endpoint, model_digest(args.model_dir), limits, mailbox)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    threading.Thread(target=FakeCore(mailbox, args.tokens_per_s).run, name="fake-core", daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
