"""An archive of a PostgreSQL: base backups and the write-ahead log since, from which any moment can be restored.

    <archive>/base/<time at which it was whole>/    as pg_basebackup makes it, checked with pg_verifybackup
    <archive>/wal/                                  as pg_receivewal writes it, a moment after the server

The log comes through a replication slot, so that the server keeps what the archive does not have yet, up to
`max_slot_wal_keep_size`. The role has to be a superuser or to have REPLICATION. Knows nothing about tables.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import asyncpg

from gateway.db.pool import CONNECT_TIMEOUT_S, UNAVAILABLE, UNUSABLE, in_words
from gateway.postgres.dump import postgres_program, without_password
from gateway.support.process import make_private_folder

APPLICATION_NAME = "lorikeet-archive"
SLOT = "lorikeet_archive"
BASES = "base"
WAL = "wal"
PARTIAL_SUFFIX = ".partial"
"""The suffix of the log's file that pg_receivewal is writing."""

LOG_LOST = (
    "can no longer access replication slot",
    "has already been removed",
    "invalidated",
    "is not in this server's history",  # the server was restored to a moment before
    "is ahead of the WAL flush position of this server",
)
"""Parts of the error messages of a server that no longer has the log that follows the archive's last file."""

NO_SLOT = f'replication slot "{SLOT}" does not exist'

HELD_S = 2.0
"""Seconds for which a receiver that has ended may still hold the replication slot."""

STATUS_EVERY_S = 1
RETRY_S = 5.0
POLL_S = 1.0
STOP_S = 30.0
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_SEGMENT = re.compile(r"[0-9A-F]{24}")
_START = re.compile(r"^START WAL LOCATION: (\S+) \(file ([0-9A-F]{24})\)$", re.MULTILINE)
_HISTORY = re.compile(r"([0-9A-F]{8})\.history")
_FORK = re.compile(r"^\s*(\d+)\s+([0-9A-F]+/[0-9A-F]+)", re.MULTILINE)


class ArchiveError(RuntimeError):
    """The error for an archive that cannot be written or read; the message has the reason."""


def is_archive(folder: Path) -> bool:
    """Tell whether a folder is an archive."""
    return (folder / BASES).is_dir() and (folder / WAL).is_dir()


def base_backups(archive: Path) -> list[tuple[datetime.datetime, Path]]:
    """Return the time of completion and the folder of each base backup, oldest first."""
    found = []
    for path in (archive / BASES).glob("*"):  # none while an archive is begun
        try:
            found.append((datetime.datetime.strptime(path.name, _STAMP).replace(tzinfo=datetime.UTC), path))
        except ValueError:  # one that is not whole
            continue
    return sorted(found)


def base_before(archive: Path, at: datetime.datetime | None) -> Path:
    """Return the newest base backup from which a moment can be reached. at: None: the last moment that there is.

    A base backup that ended after the server had left its timeline does not count: no log leads from the backup to the
    newest timeline.

    Raises ArchiveError: when the archive has no such base backup.
    """
    timeline, forks = _newest_timeline(archive)
    for whole_at, path in reversed(base_backups(archive)):
        if (at is None or whole_at <= at) and _leads_to(path, timeline, forks):
            return path
    raise ArchiveError(
        f"{archive} has no base backup" if at is None else f"{archive} has no base backup from before {at}"
    )


def _newest_timeline(archive: Path) -> tuple[int, dict[int, int]]:
    """Return the newest timeline of the log, and the position at which each of its ancestors was left.

    Return timeline 1 if the log has no history file.
    """
    paths = [path for path in (archive / WAL).glob("*.history") if _HISTORY.fullmatch(path.name)]
    if not paths:
        return 1, {}
    newest = max(paths)
    forks = {int(number): _position(at) for number, at in _FORK.findall(newest.read_text())}
    return int(newest.name[:8], 16), forks


def _leads_to(base: Path, timeline: int, forks: dict[int, int]) -> bool:
    """Tell whether a base backup was complete before the log branched off to a timeline."""
    own = int(first_segment(base)[:8], 16)
    if own >= timeline:
        return True
    return own in forks and _end(base, own) <= forks[own]


def _end(base: Path, timeline: int) -> int:
    """Return the position up to which a base backup needs the log; that of its start if no end is recorded.

    timeline: the number of the timeline on which the position is.
    """
    try:
        ranges = json.loads((base / "backup_manifest").read_bytes())["WAL-Ranges"]
        return max(_position(each["End-LSN"]) for each in ranges if each["Timeline"] == timeline)
    except (OSError, ValueError, KeyError):
        return _position(_label(base)[1])


def _position(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def first_segment(base: Path) -> str:
    """Return the name of the log's first file that a base backup needs.

    Raises ArchiveError: when the folder holds no base backup.
    """
    return _label(base)[2]


def _label(base: Path) -> re.Match[str]:
    """Return the start of a base backup, as (position, file)."""
    try:
        found = _START.search((base / "backup_label").read_text())
    except OSError as error:
        raise ArchiveError(f"{base} is no base backup: {error.strerror}") from None
    if found is None:
        raise ArchiveError(f"{base} is no base backup: its backup_label names no file of the log")
    return found


def wal_since(archive: Path, segment: str) -> list[Path]:
    """Return the files of the write-ahead log from a segment on, including histories of timelines."""
    return sorted(
        path
        for path in (archive / WAL).iterdir()
        if not _SEGMENT.match(path.name) or path.name[8:24] >= segment[8:]  # the first 8 digits are the timeline
    )


def take_base(dsn: str, archive: Path) -> Path:
    """Add a base backup of a server to an archive, verify it, and return its folder. Blocks.

    Raises ArchiveError: when a program of PostgreSQL fails.
    """
    unfinished = make_private_folder(archive / BASES) / f"unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        _run_program("pg_basebackup", dsn, [f"--pgdata={unfinished}", "--checkpoint=fast", "--wal-method=stream"])
        verify_base(unfinished)
        whole = archive / BASES / datetime.datetime.now(datetime.UTC).strftime(_STAMP)
        unfinished.rename(whole)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return whole


def verify_base(base: Path) -> None:
    """Read every file of a base backup again, to verify it. Blocks.

    The log in the backup is verified if the backup is of the same major version as the programs here.

    Raises ArchiveError: when a file is missing or damaged.
    """
    verify = postgres_program("pg_verifybackup")
    shown = subprocess.run([verify, "--version"], capture_output=True, text=True, check=True).stdout
    is_other = (base / "PG_VERSION").read_text().strip() != shown.split()[-1].split(".")[0]
    command = [str(verify), "--quiet", *(["--no-parse-wal"] if is_other else []), str(base)]
    _check(subprocess.run(command, capture_output=True, text=True, check=False))


def prune_archive(archive: Path, num_bases: int) -> None:
    """Delete all base backups of an archive but the newest num_bases, and the log from before them."""
    found = base_backups(archive)
    if len(found) <= num_bases:
        return
    for _, path in found[:-num_bases]:
        shutil.rmtree(path)
    oldest = first_segment(found[-num_bases][1])
    for path in (archive / WAL).iterdir():
        if _SEGMENT.match(path.name) and path.name[8:24] < oldest[8:]:
            path.unlink()


class Receiver:
    """The process that writes the server's write-ahead log to an archive as it is generated."""

    def __init__(self, dsn: str, archive: Path) -> None:
        self._dsn = dsn
        self._wal = make_private_folder(archive / WAL)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start to receive the write-ahead log from the replication slot, which is made if need be.

        Raises ArchiveError: when the slot cannot be made, or another receiver has it.
        """
        slot = f"--slot={SLOT}"
        _run_program("pg_receivewal", self._dsn, [slot, "--create-slot", "--if-not-exists"])
        _wait_until_free(self._dsn)
        arguments = [slot, f"--directory={self._wal}", "--synchronous", "--no-loop"]
        arguments.append(f"--status-interval={STATUS_EVERY_S}")
        command, environ = _command("pg_receivewal", self._dsn, arguments)
        self._process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def failure(self) -> str | None:
        """Return the reason why the process has ended; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        assert self._process.stderr is not None
        return " ".join(self._process.stderr.read().split()) or f"exit code {self._process.returncode}"

    def stop(self) -> None:
        """End the receiving process, if one runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


_HOLDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1"


def _wait_until_free(dsn: str) -> None:
    """Wait until nobody receives from the replication slot.

    Raises ArchiveError: when somebody still receives from it after HELD_S.
    """
    deadline = time.monotonic() + HELD_S
    while (pid := asyncio.run(_holder(dsn))) is not None:
        if time.monotonic() > deadline:
            raise ArchiveError(
                f"another `lorikeet archive` receives this database's log (the server's process {pid} has the "
                f"replication slot {SLOT}): a database has one archive; end the other one first"
            )
        time.sleep(0.1)


async def _holder(dsn: str) -> int | None:
    """Return the process id of the server process that uses the slot; None if nobody receives.

    Raises ArchiveError: when the database cannot be used.
    """
    try:
        conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
        try:
            found: int | None = await conn.fetchval(_HOLDER, SLOT)
        finally:
            await conn.close()
    except (*UNUSABLE, *UNAVAILABLE) as error:
        raise ArchiveError(in_words(error)) from None
    return found


def keep_archive(
    dsn: str,
    archive: Path,
    *,
    base_every_s: float,
    num_bases: int,
    report: Callable[[str], None],
    stop: threading.Event,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Receive the log, and take base backups, until `stop` is set. While the server is away, wait for it.

    If the server no longer has the log that follows the archive's last file, the archive is set aside whole and another
    one is begun in its place. After a server's restore, which begins a timeline, a base backup is due at once.

    on_poll: called about each second, to put other files into the archive that a restore needs. report: called with a
    sentence at each event.

    Raises ArchiveError: when the first start of the receiver or the first base backup fails.
    """
    receiver = Receiver(dsn, archive)
    receiver.start()
    report(f"the log goes to {archive / WAL}")
    is_first, is_down, is_gone = True, False, False
    try:
        while not stop.is_set():
            if (failure := receiver.failure()) is not None:
                report(f"the log cannot be received: {failure}")
                receiver.stop()
                is_down = True
                is_gone = is_gone or any(part in failure for part in LOG_LOST)
                stop.wait(RETRY_S)
            try:
                on_poll()
                if is_gone:
                    report(f"set aside what was archived so far: {_set_aside(dsn, archive)}")
                    is_gone = False
                if is_down:
                    receiver.start()
                    is_down = False
                if _is_due(archive, base_every_s):
                    report(f"took a base backup: {take_base(dsn, archive)}")
                    prune_archive(archive, num_bases)
                is_first = False
            except ArchiveError as error:
                if is_first:
                    raise
                report(str(error))
                stop.wait(RETRY_S)
            stop.wait(POLL_S)
    finally:
        receiver.stop()


def _set_aside(dsn: str, archive: Path) -> Path:
    """Drop the replication slot, and move the base backups and the log into a subfolder of the archive. Return it."""
    try:
        _run_program("pg_receivewal", dsn, [f"--slot={SLOT}", "--drop-slot"])
    except ArchiveError as error:  # nothing was moved yet: the next try begins anew
        if NO_SLOT not in str(error):
            raise
    former = make_private_folder(archive / f"until-{datetime.datetime.now(datetime.UTC).strftime(_STAMP)}")
    for name in (BASES, WAL):
        if (archive / name).is_dir():
            (archive / name).rename(former / name)
    make_private_folder(archive / WAL)
    return former


def _is_due(archive: Path, base_every_s: float) -> bool:
    found = base_backups(archive)
    if not found or time.time() - found[-1][0].timestamp() >= base_every_s:
        return True
    return int(first_segment(found[-1][1])[:8], 16) < _newest_timeline(archive)[0]


def _run_program(name: str, dsn: str, arguments: Sequence[str]) -> None:
    command, environ = _command(name, dsn, arguments)
    _check(subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False))


def _command(name: str, dsn: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    shown, password = without_password(dsn)
    environ = dict(os.environ) | {"PGAPPNAME": APPLICATION_NAME, "LC_ALL": "C"}
    if password is not None:
        environ["PGPASSWORD"] = password
    return [str(postgres_program(name)), f"--dbname={shown}", "--no-password", *arguments], environ


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ArchiveError(f"{Path(done.args[0]).name} failed: {why}")
