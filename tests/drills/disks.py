"""Full disks: that of the journals, that of the database, and that of the whole data folder.

Each is a small file system in memory, which takes root.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.postgres.embedded import EmbeddedPostgresError
from tests.drills.drill import CannotRun, Drill, Fault, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.processes import BEGUN
from tests.drills.traffic import Traffic
from tests.faults.processes import Postgres
from tests.installation.waiting import wait_until

FULL_S = 8.0


@contextmanager
def small_disk(folder: Path, num_mib: int) -> Iterator[Path]:
    """Mount a file system of this size at a folder that every user can pass through."""
    if os.geteuid():
        raise CannotRun("takes root, to mount a small disk")
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_mib}m,mode=0711", "lorikeet-drill", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        raise CannotRun("this machine does not let a file system be mounted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Fill a disk completely, including the bytes reserved for root, until the context is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    try:
        yield
    finally:
        ballast.unlink()


def full_for_a_while(folder: Callable[[Ground], Path]) -> Fault:
    """Return the fault of a disk that is full for some seconds."""

    def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
        before = traffic.outcomes()
        with filled(folder(ground)):
            time.sleep(FULL_S)
        met = traffic.outcomes() - before
        return ", ".join(f"{count} {name}" for name, count in met.most_common(4)) + " while full"

    return fault


def of_data_folder(folder: Path, rng: random.Random) -> Outcome:
    """Run the drill of a full data folder. The database has a disk of its own."""
    postgres = Postgres(_passable(folder / "database"))
    with (
        small_disk(folder / "data", 48) as disk,
        running_ground(disk, postgres=postgres, produced=folder / "produced") as ground,
    ):
        return measure(ground, full_for_a_while(lambda ground: ground.folder), rng, BEGUN)


def of_database(folder: Path, rng: random.Random) -> Outcome:
    """Run the drill of a full database disk. A server that ends since its disk is full is started again, as by
    `lorikeet serve`."""
    with small_disk(folder / "disk", 640) as disk:
        postgres = Postgres(_passable(disk / "database"))

        def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
            before = traffic.num_answered
            with filled(disk):
                time.sleep(FULL_S)
            answered = traffic.num_answered - before
            died = not postgres.is_alive()
            if died:
                wait_until(lambda: _starts(postgres.start_again), "the database does not start again", pause_s=0.5)
            return f"{answered} answers while full; the server {'ended and was started again' if died else 'stayed'}"

        with running_ground(_passable(folder / "data"), postgres=postgres) as ground:
            return measure(ground, fault, rng)


def _starts(start: Callable[[], None]) -> bool:
    try:
        start()
    except EmbeddedPostgresError:
        return False
    return True


def _passable(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    return folder


DRILLS = (
    Drill("disk full: data folder", "what cannot be journaled is refused with 503, and it recovers", of_data_folder),
    Drill("disk full: database", "requests go on, usage waits in journals, and it recovers", of_database),
)
