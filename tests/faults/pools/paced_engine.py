"""An engine with the real scheduler and server, whose steps take a fixed time and compute nothing.

`python -m tests.faults.pools.paced_engine --endpoint ADDRESS --model-dir DIR --step-s 0.01 --max-num-seqs 2`: what a
tenant gets of it is decided by the engine's own fairness, without a model and without torch.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time

from engine.config import load_model_config, model_digest
from engine.mailbox import Drain, Mailbox, ServedElsewhere
from engine.protocol import Abort, EngineLimits, EngineStats, Final, GenerateRequest, StepOutputs, Usage
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.limits import Limits
from engine.scheduling.scheduler import Scheduler
from engine.sequence import ChunkResult, SampledToken
from engine.server import EngineServer
from tests.engine.scheduling.fairness_simulator import InstantSlots

BLOCK_SIZE, NUM_BLOCKS = 16, 4096
MAX_BATCHED_TOKENS = 128
MAX_WAITING = 2048
STATS_INTERVAL_S = 0.2
TOKEN = 7


class PacedCore:
    """The core of an engine that schedules as usual; a step lasts step_s and gives each sequence the same token."""

    def __init__(self, mailbox: Mailbox, limits: Limits, step_s: float) -> None:
        self._mailbox = mailbox
        self._step_s = step_s
        self._slots = InstantSlots(load_bytes=0)
        self._blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self._scheduler = Scheduler(self._blocks, self._slots, limits, time.monotonic)
        self._next_stats_s = 0.0

    def run(self) -> None:
        """Step until the process ends."""
        while True:
            is_idle = not (self._scheduler.num_running or self._scheduler.num_waiting)
            for command in self._mailbox.take_commands(STATS_INTERVAL_S if is_idle else 0.0):
                self._obey(command)
            self._slots.arrivals()
            if not is_idle:
                self._step()
            if time.monotonic() >= self._next_stats_s:
                self._next_stats_s = time.monotonic() + STATS_INTERVAL_S
                self._mailbox.post(self._stats())

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                error = self._scheduler.add(command, seed=0)
                if error is not None:
                    self._end(Final(command.request_id, "error", Usage(0, 0), error))
            case Abort(request_id, num_kept, index):
                final = self._scheduler.abort(request_id, num_kept, index)
                if final is not None:
                    self._end(final)
            case ServedElsewhere(services):
                self._scheduler.count_elsewhere(services)
            case Drain():
                raise SystemExit

    def _step(self) -> None:
        begun_s = time.monotonic()
        plan = self._scheduler.schedule()
        self._scheduler.launched(plan)
        time.sleep(max(0.0, begun_s + self._step_s - time.monotonic()))
        results = [ChunkResult([SampledToken(TOKEN)] if chunk.samples else []) for chunk in plan.chunks]
        self._mailbox.post(self._scheduler.commit(plan, results))

    def _end(self, final: Final) -> None:
        self._mailbox.post(StepOutputs(finals=[final]))

    def _stats(self) -> EngineStats:
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            kv_blocks_used=NUM_BLOCKS - self._blocks.num_free,
            kv_blocks_total=NUM_BLOCKS,
            tenants=self._scheduler.tenant_stats(16),
            resident_adapters=sorted(self._slots.resident),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    args = parser.parse_args()
    model, digest, mailbox = load_model_config(args.model_dir), model_digest(args.model_dir), Mailbox()
    limits = Limits(
        max_num_seqs=args.max_num_seqs,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_waiting=MAX_WAITING,
        max_model_len=model.max_position,
        vocab_size=model.vocab_size,
        eos_token_ids=frozenset(),
        token_bytes=10,
    )
    told = EngineLimits(
        model.max_position, args.max_num_seqs, MAX_WAITING, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS
    )
    server = EngineServer(args.endpoint, digest, told, mailbox, fingerprint=digest, device="paced")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.drain())
    core = PacedCore(mailbox, limits, args.step_s)
    threading.Thread(target=core.run, name="paced-core", daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
