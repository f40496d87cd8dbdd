"""An hour under load with a fault every half a minute: no wrong answer, an exact ledger, and no growth.

`python -m tests.drills.soak --folder build/soak` runs it in stretches of ten minutes. After each, traffic stops, the
ledger is checked against clients and engines, and the figures are stored in the folder: after an interruption the same
command goes on with the next stretch, on a new installation. `--seed` chooses the faults and requests.

The first gateway is frozen but never killed, so that its memory and descriptors can be followed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.drills.ground import Ground, running_ground
from tests.drills.growth import MIB, Sample, Slope, slope, take
from tests.drills.traffic import Traffic

FAULT_EVERY_S = 30.0
SAMPLE_EVERY_S = 10.0
STRETCH_S = 600.0
SHARE = 0.7


class Stretch(msgspec.Struct):
    """The figures of ten minutes of the soak that ran to their end."""

    installation: int
    """A number that changes where another installation was started."""
    seconds: float
    outcomes: dict[str, int]
    """The number of requests of each outcome."""
    faults: dict[str, int]
    """The number of faults of each kind."""
    wrong: list[str]
    """A line for each answer that was not its own model's."""
    samples: list[Sample]
    longest_silence_s: float


class State(msgspec.Struct):
    """The stretches of a soak so far."""

    seed: int
    stretches: list[Stretch] = []


class Faults:
    """The faults of a soak, each kind as likely as the others."""

    def __init__(self, ground: Ground, rng: random.Random) -> None:
        self._ground = ground
        self._rng = rng
        self.kinds: dict[str, Callable[[], None]] = {
            "gateway killed": self._kill_gateway,
            "gateway frozen 4 s": self._freeze_gateway,
            "engine killed": self._kill_engine,
            "engine frozen 4 s": self._freeze_engine,
            "all engines of a base killed": self._kill_base,
            "database killed": ground.postgres.kill,
            "database restarted": ground.postgres.restart,
            "database frozen 5 s": self._freeze_database,
        }

    def cause_one(self) -> str:
        """Cause a fault of a kind drawn at random; return the name of the kind."""
        name = self._rng.choice(list(self.kinds))
        self.kinds[name]()
        return name

    def _kill_gateway(self) -> None:
        self._ground.gateways[1].kill()
        self._ground.gateways[1].start()

    def _freeze_gateway(self) -> None:
        with self._rng.choice(self._ground.gateways).frozen():
            time.sleep(4)

    def _engine(self) -> tuple[str, int]:
        base = self._rng.choice(list(self._ground.engines.of_base))
        return base, self._rng.randrange(len(self._ground.engines.of_base[base]))

    def _kill_engine(self) -> None:
        base, number = self._engine()
        self._ground.engines.of_base[base][number].kill()
        time.sleep(self._rng.uniform(0, 3))
        self._ground.engines.of_base[base][number].start()

    def _freeze_engine(self) -> None:
        base, number = self._engine()
        with self._ground.engines.of_base[base][number].frozen():
            time.sleep(4)

    def _kill_base(self) -> None:
        engines = self._ground.engines.of_base[self._engine()[0]]
        for engine in engines:
            engine.kill()
        for engine in engines:
            engine.start()

    def _freeze_database(self) -> None:
        with self._ground.postgres.frozen():
            time.sleep(5)


def run_stretch(ground: Ground, seed: str, installation: int, begun_s: float, seconds: float) -> Stretch:
    """Let faults happen for `seconds`, and check the outcomes; return the figures.

    installation: the number of the installation. begun_s: the time at which the soak began.

    Raises AssertionError: when the ledger is wrong.
    """
    faults, happened = Faults(ground, random.Random(seed)), Counter[str]()
    samples: list[Sample] = []
    start_s = time.monotonic()
    with ground.traffic(SHARE, random.Random(seed).randrange(1 << 30)) as traffic:
        next_fault_s, next_sample_s = start_s + FAULT_EVERY_S / 2, start_s
        while (now_s := time.monotonic()) < start_s + seconds:
            if now_s >= next_fault_s:
                happened[faults.cause_one()] += 1
                next_fault_s += FAULT_EVERY_S
            elif now_s >= next_sample_s:
                samples.append(_sample(ground, now_s - begun_s))
                next_sample_s += SAMPLE_EVERY_S
            else:
                time.sleep(0.2)
        for gateway in ground.gateways:
            gateway.wait_ready()
        traffic.more_answers(50)
    ground.check()
    samples.append(_sample(ground, time.monotonic() - begun_s))
    return _stretch(installation, time.monotonic() - start_s, traffic, happened, samples)


def _sample(ground: Ground, at_s: float) -> Sample:
    pids = {f"gateway {number}": gateway.pid for number, gateway in enumerate(ground.gateways)}
    return take(at_s, {name: pid for name, pid in pids.items() if pid}, ground.postgres.dsn, ground.folder)


def _stretch(
    installation: int, seconds: float, traffic: Traffic, happened: Counter[str], samples: list[Sample]
) -> Stretch:
    return Stretch(
        installation,
        seconds,
        dict(traffic.outcomes()),
        dict(happened),
        traffic.wrong,
        samples,
        traffic.longest_silence_s(),
    )


def table(state: State) -> tuple[str, bool]:
    """Return the figures as lines, and whether everything held."""
    outcomes, faults = Counter[str](), Counter[str]()
    for stretch in state.stretches:
        outcomes.update(stretch.outcomes)
        faults.update(stretch.faults)
    wrong = [line for stretch in state.stretches for line in stretch.wrong]
    seconds = sum(stretch.seconds for stretch in state.stretches)
    installations = sorted({stretch.installation for stretch in state.stretches})
    lines = [
        f"soak of {seconds / 60:.0f} min, seed {state.seed}, {len(installations)} installation(s)",
        f"requests            {outcomes.total()} ({outcomes.total() / seconds:.1f}/s)",
    ]
    lines += [f"  {name:40} {count}" for name, count in outcomes.most_common()]
    lines += [f"wrong answers       {len(wrong)}", *wrong[:5]]
    lines += ["ledger              exact after each stretch: one billed attempt of each answer, no more than was made"]
    lines += [f"longest silence     {max(s.longest_silence_s for s in state.stretches):.1f} s"]
    lines += [f"faults              {faults.total()}"] + [
        f"  {name:40} {count}" for name, count in faults.most_common()
    ]
    is_flat = True
    for installation in installations:
        samples = [each for s in state.stretches if s.installation == installation for each in s.samples]
        lines += [f"growth of installation {installation} (the first fifth left out)"]
        for name, found, unit in _slopes(samples):
            is_flat &= found.is_flat
            verdict = "flat" if found.is_flat else "GROWS"
            lines += [
                f"  {name:28} {found.first / unit:9.1f} -> {found.last / unit:9.1f}   {found.per_hour / unit:+8.2f}/h"
                f"   scatter {found.noise / unit:6.2f}   {verdict}"
            ]
        if not samples:
            continue
        rows = sorted(samples[-1].rows.items(), key=lambda item: -item[1])
        lines += ["  rows at the end: " + ", ".join(f"{name} {count}" for name, count in rows[:12])]
        lines += [
            f"  files            {samples[0].num_files} -> {samples[-1].num_files}, "
            f"{samples[0].file_bytes / MIB:.1f} -> {samples[-1].file_bytes / MIB:.1f} MiB"
        ]
    return "\n".join(lines), not wrong and is_flat


def _slopes(samples: list[Sample]) -> list[tuple[str, Slope, float]]:
    """Return the growth of the first gateway's memory in MiB and of its descriptors."""
    name = "gateway 0"
    times_s = [sample.at_s for sample in samples if name in sample.rss_bytes]
    memory = [float(sample.rss_bytes[name]) for sample in samples if name in sample.rss_bytes]
    descriptors = [float(sample.descriptors[name]) for sample in samples if name in sample.rss_bytes]
    return [
        ("RSS of gateway 0, MiB", slope(times_s, memory), MIB),
        ("descriptors of gateway 0", slope(times_s, descriptors), 1.0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills.soak", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("build/soak"), help="keeps what was seen, and goes on from it"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--stretch-s", type=float, default=STRETCH_S, help="seconds between two checks of the ledger")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / f"seed-{args.seed}.json"
    state = msgspec.json.decode(kept.read_bytes(), type=State) if kept.exists() else State(args.seed)
    installation = len({stretch.installation for stretch in state.stretches})
    home = Path(tempfile.mkdtemp(prefix="lorikeet-soak-"))
    try:
        with running_ground(home, num_replicas=2) as ground:
            begun_s = time.monotonic()
            while sum(stretch.seconds for stretch in state.stretches) < args.minutes * 60:
                seed = f"{args.seed}-{len(state.stretches)}"
                state.stretches.append(run_stretch(ground, seed, installation, begun_s, args.stretch_s))
                unfinished = kept.with_suffix(".new")
                unfinished.write_bytes(msgspec.json.encode(state))
                unfinished.replace(kept)
                print(table(state)[0], flush=True)
            ground.settle()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    text, held = table(state)
    print(text)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
