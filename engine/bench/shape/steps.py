"""Decode, mixed and prefill steps beside their floors: the base, the base while adapters are loaded, and many adapters.

A step is the model runner's: from a plan to tokens on the host. Decodes are launched one step ahead, as in the engine's
loop, but for those that await each token. forward is the device's part alone, many in a row. The scheduler's time
between steps is measured by `registered`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from statistics import median

import torch

from engine.bench.report import Row
from engine.bench.shape.floors import decode_work, prefill_work
from engine.bench.shape.rig import Rig, decode_plan
from engine.bench.shape.sizes import Sizes
from engine.sequence import Chunk, Plan, Sequence
from kernels.bench.floors import Rates, Work, floor


def measure_steps(rig: Rig, sizes: Sizes, rates: Rates | None) -> Iterator[Row]:
    """Yield rows of the measured steps.

    rates: the rates of this device, measured in this run; None runs everything and claims nothing.
    """
    table = _Table(rig, sizes, rates)
    base = table.streams([""])
    unloaded = table.decodes(base)
    mixed = table.streams([str(i) for i in range(sizes.adapters)])
    unused, used = [], []
    for _ in range(sizes.rounds):  # in turns: a GPU's clock moves
        unused += table.decodes(base)
        used += table.decodes(mixed)
    yield table.decode_row("decode, base", base, unloaded)
    yield table.decode_row("decode, each token awaited", base, table.awaited(base))
    yield table.decode_row("decode, adapters loaded and unused", base, unused, over=unloaded, target="<= 1.01")
    yield table.decode_row(f"decode, {sizes.adapters} adapters", mixed, used, over=unused, target="<= 1.2")
    beside = [table.mixed_plan(sequences) for sequences in (base, mixed)]
    plain_s, adapted_s = [], []
    for _ in range(sizes.rounds):
        plain_s += table.repeated(beside[0])
        adapted_s += table.repeated(beside[1])
    case = f"decode beside {sizes.mixed_prompt_tokens} of a prompt"
    yield table.mixed_row(f"{case}, base", beside[0], plain_s)
    yield table.mixed_row(f"{case}, {sizes.adapters} adapters", beside[1], adapted_s, over=plain_s)
    rig.end([*base, *mixed, *(plan.prefills[0].sequence for plan in beside)])
    plain, adapted = table.prompts([""] * sizes.chunks), table.prompts([str(i) for i in range(sizes.chunks)])
    base_s, adapted_s = [], []
    for _ in range(sizes.rounds):
        base_s += table.prefills(plain)
        adapted_s += table.prefills(adapted)
    yield table.prefill_row("prefill, base", plain, base_s)
    yield table.prefill_row(f"prefill, {sizes.chunks} adapters", adapted, adapted_s, over=base_s, target="<= 1.11")
    rig.end([*plain, *adapted])


class _Table:
    """Makes the sequences, times their steps, and compares the times with their floors."""

    def __init__(self, rig: Rig, sizes: Sizes, rates: Rates | None) -> None:
        self._rig = rig
        self._sizes = sizes
        self._rates = rates
        self._random = random.Random(2)  # noqa: S311
        self._width = rig.dtype.itemsize
        self._num_steps = max(sizes.steps // sizes.rounds, 1)

    def streams(self, adapters: Many[str]) -> list[Sequence]:
        """Return sequences that decode, their adapters in turn, with room for all their steps.

        Amid the steps each sequence is as long as the sizes say.
        """
        turns = 2 + self._sizes.rounds  # alone, awaited, then in turns with others
        room = turns * (self._sizes.warm_up + self._num_steps + 1)
        names = [adapters[i % len(adapters)] for i in range(self._sizes.streams)]
        prompt = self._sizes.context - room // 2
        started = [self._rig.start(self._prompt(prompt), room, adapter=name) for name in names]
        self._rig.prefill(started)
        return started

    def prompts(self, adapters: Many[str]) -> list[Sequence]:
        return [self._rig.start(self._prompt(self._sizes.chunk_tokens), 1, adapter=name) for name in adapters]

    def decodes(self, sequences: Many[Sequence]) -> list[float]:
        """Return the seconds of each step, launched when the one before it is halfway."""
        plan = decode_plan(sequences)
        flight = [(plan, self._rig.launch(plan))]

        def step() -> None:
            plan, launched = flight.pop()
            launched.await_half()
            following = decode_plan(sequences)
            flight.append((following, self._rig.launch(following)))
            self._rig.take(plan, launched)

        seconds = self._seconds_of_steps(step, self._num_steps)
        self._rig.take(*flight.pop())
        return seconds

    def awaited(self, sequences: Many[Sequence]) -> list[float]:
        """Return the seconds of each step, launched when the tokens of the one before it are there."""
        return self._seconds_of_steps(lambda: self._rig.step(decode_plan(sequences)), self._num_steps)

    def mixed_plan(self, sequences: Many[Sequence]) -> Plan:
        """Return a plan of a token for each sequence but the last, and of a prompt with the adapter of the last."""
        *decoding, last = sequences
        prompt = self._rig.start(self._prompt(self._sizes.mixed_prompt_tokens), 1, adapter=last.request.adapter)
        return Plan(decode_plan(decoding).decodes, [Chunk.of(prompt, 0, len(prompt.token_ids))])

    def repeated(self, plan: Plan) -> list[float]:
        """Return the seconds of each time that the same step is computed."""
        return self._seconds_of_steps(lambda: self._rig.runner.run(plan), self._num_steps)

    def prefills(self, sequences: Many[Sequence]) -> list[float]:
        plan = Plan([], [Chunk.of(sequence, 0, len(sequence.token_ids)) for sequence in sequences])
        return self._seconds_of_steps(lambda: self._rig.runner.run(plan), 1)

    def _seconds_of_steps(self, step: Callable[[], object], count: int) -> list[float]:
        seconds = []
        for _ in range(self._sizes.warm_up + count):
            start_s = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start_s)
        return seconds[self._sizes.warm_up :]

    def decode_row(
        self,
        case: str,
        sequences: Many[Sequence],
        steps_s: list[float],
        over: list[float] | None = None,
        target: str = "",
    ) -> Row:
        contexts = [self._sizes.context] * len(sequences)
        work = decode_work(self._rig.model, contexts, self._ranks(sequences), self._width)
        return self._row(case, decode_plan(sequences), work, steps_s, over, target)

    def mixed_row(self, case: str, plan: Plan, steps_s: list[float], over: list[float] | None = None) -> Row:
        """Return the table's row of decodes beside a prompt.

        over: the seconds of the steps that the row is compared with; None: it is compared with none. The floor counts
        the bytes that the decodes read, since the prompt is in the same step, and the products of both.
        """
        sequences = [chunk.sequence for chunk in plan.chunks]
        contexts = [self._sizes.context] * len(plan.decodes)
        decodes = decode_work(self._rig.model, contexts, self._ranks(sequences), self._width)
        prompt = prefill_work(
            self._rig.model, [self._sizes.mixed_prompt_tokens], self._ranks(sequences[-1:]), self._width
        )
        work = decodes._replace(num_operations=decodes.num_operations + prompt.num_operations)
        return self._row(case, plan, work, steps_s, over, "")

    def prefill_row(
        self,
        case: str,
        sequences: Many[Sequence],
        steps_s: list[float],
        over: list[float] | None = None,
        target: str = "",
    ) -> Row:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        work = prefill_work(self._rig.model, lengths, self._ranks(sequences), self._width)
        plan = Plan([], [Chunk.of(sequence, 0, len(sequence.token_ids)) for sequence in sequences])
        return self._row(case, plan, work, steps_s, over, target)

    def _row(
        self, case: str, plan: Plan, work: Work, steps_s: list[float], over: list[float] | None, target: str
    ) -> Row:
        forward_s = self._forward_s(plan)
        names = (
            "rows",
            "step_ms",
            "forward_ms",
            "floor_ms",
            "step_over_floor",
            "forward_over_floor",
            "over_base",
            "target",
        )
        if self._rates is None:
            return {"case": case} | dict.fromkeys(names, "-")
        least_s, step_s = floor(work, self._rates).seconds, median(steps_s)
        values = (
            plan.num_tokens,
            round(step_s * 1e3, 3),
            round(forward_s * 1e3, 3),
            round(least_s * 1e3, 3),
            round(step_s / least_s, 3),
            round(forward_s / least_s, 3),
            round(step_s / median(over), 3) if over else "-",
            target or "-",
        )
        return {"case": case} | dict(zip(names, values, strict=True))

    @torch.inference_mode()
    def _forward_s(self, plan: Plan) -> float:
        """Return the device's seconds of one of many forward passes in a row; each computes the same positions."""
        rows = list(range(len(plan.chunks)))
        compute = self._rig.accelerator.compute
        for count in (1, self._sizes.steps) if self._rates else (1,):  # the first is to warm up
            start_s = time.perf_counter()
            for _ in range(count):
                self._rig.path.forward(plan, rows)
            compute.record().synchronize()
        return (time.perf_counter() - start_s) / count

    def _ranks(self, sequences: Many[Sequence]) -> list[int]:
        """Return the ranks of the sequences' distinct adapters."""
        slots = {sequence.adapter_slot for sequence in sequences if sequence.adapter_slot is not None}
        adapters = [self._rig.pool.adapter(slot) for slot in slots]
        return [len(next(iter(adapter.groups.values())).bs[0]) for adapter in adapters]

    def _prompt(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(self._rig.model.vocab_size) for _ in range(num_tokens)]
