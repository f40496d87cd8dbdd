"""The user that agents, gateways and engines run as: the one who started `serve` or, under root, a user of their own.

That user has to reach the program, the data folder and the folders of settings. If that user cannot, since all of it is
in root's own folder for example, the processes run as root, and the log says why. No other folder is opened to that
user. Only the data folder gets wider modes: the user may add files there, and cannot remove those of others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.agent import lease
from gateway.settings import Settings
from gateway.support import host
from gateway.support.accounts import Account, give_below, system_account
from gateway.support.model_folders import prepared_folder

ACCOUNT_NAME = "lorikeet-server"
CHECK_TIMEOUT_S = 60.0
FOLDERS = ("adapters", "adapter-cache", "link", "uploads", "replicas")
FILES = ("inspection.lock", host.ID_NAME, lease.LOCK_NAME)
"""Files that agents and gateways write to the data folder, besides those whose paths are settings."""

# A program that prints the first path that cannot be reached. Each argument is a kind and a path: enter, read all of,
# or write to.
_CHECK = """
import os, sys
import engine, gateway
KINDS = {"x": os.X_OK, "r": os.R_OK | os.X_OK, "w": os.W_OK | os.X_OK}
for argument in sys.argv[1:]:
    if not os.access(argument[1:], KINDS[argument[0]]):
        sys.exit(argument[1:])
"""


def server_account(settings: Settings, report: Callable[[str], None]) -> Account | None:
    """Return the user as which this process, if it is root's, starts its children; None: as root."""
    if os.geteuid() != 0:
        return None
    account = system_account(ACCOUNT_NAME)
    if account is None:
        report(f"warning: user {ACCOUNT_NAME} could not be made: agent, worker, gateways and engines run as root")
        return None
    if (path := _out_of_reach(settings, account)) is not None:
        report(f"warning: user {account.name} cannot reach {path}: agent, worker, gateways and engines run as root")
        return None
    return account


def owner_of_models(settings: Settings, account: Account | None) -> Account | None:
    """Return the user as which base models are prepared: that of the children, once the folder of models is theirs.

    The first start prepares as root, who may install the package that brings the demo's model.

    account: the user of the children; None: they run as this process's user.
    """
    folder = settings.model_cache_dir
    return account if account is not None and folder.exists() and folder.stat().st_uid == account.uid else None


def take_back(settings: Settings) -> None:
    """Make root the owner of a folder of sockets that an earlier start gave to another user."""
    if os.geteuid() == 0 and settings.run_dir.is_dir() and not settings.run_dir.is_symlink():
        os.chown(settings.run_dir, 0, 0)


def _out_of_reach(settings: Settings, account: Account) -> str | None:
    """Return a path that a user needs and cannot reach; None if all can be reached.

    The kernel is asked: access lists count, too.
    """
    if settings.data_dir.stat().st_uid != 0:
        return f"{settings.data_dir}, which is not root's"
    needed = [f"x{settings.data_dir}"]
    if Path(settings.model).is_absolute() and Path(settings.model).exists():
        needed.append(f"r{settings.model}" if Path(settings.model).is_dir() else f"x{Path(settings.model).parent}")
    if settings.model_cache_dir.is_symlink():  # elsewhere, and nobody's to give
        needed.append(f"r{prepared_folder(settings)}")
    if settings.adapter_folder is not None and settings.adapter_folder.is_dir():
        needed.append(f"r{settings.adapter_folder}")
    store = Path(settings.engine.adapter_store)
    if not settings.has_remote_store and store.is_dir() and not store.is_relative_to(settings.data_dir):
        needed.append(f"w{store}")
    command = [sys.executable, "-c", _CHECK, *needed]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=CHECK_TIMEOUT_S, **account.popen_arguments()
        )
    except PermissionError:
        return sys.executable
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines and lines[-1].startswith("/") else str(Path(__file__).parents[2])


def give_data_files(settings: Settings, account: Account) -> None:
    """Make a user the owner of their files in the data folder, as far as the files are root's.

    This process holds the folder's lock. Walks by descriptors and follows no link: an engine that an earlier start left
    may be running as that user.
    """
    os.chown(settings.data_dir, 0, account.gid)
    settings.data_dir.chmod(0o1771)  # sticky: they add files, and remove none but their own
    for folder in _folders(settings):
        if not folder.exists():
            folder.mkdir(mode=0o700)
        if not folder.is_symlink():
            _give_to_account(folder, account)
    for name in (settings.content_key_path.name, *FILES):
        if (settings.data_dir / name).exists():
            _give_one(name, account, settings.data_dir)


def _folders(settings: Settings) -> list[Path]:
    return [
        *(settings.data_dir / name for name in FOLDERS),
        settings.export_dir,
        settings.journal_dir,
        settings.model_cache_dir,
        settings.home_dir,
        settings.log_dir,
        settings.run_dir,
    ]


def _give_to_account(folder: Path, account: Account) -> None:
    _give_one(folder.name, account, folder.parent)
    give_below(folder, account.uid, account.gid)


def _give_one(name: str, account: Account, folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == 0:
            os.chown(name, account.uid, account.gid, dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.close(descriptor)
