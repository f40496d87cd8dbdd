"""Users of the system that processes run as where root starts them, and the rights that root gives up meanwhile.

`serve` under root acts as an unprivileged user from its first steps on (`step_down`), and is root again only where it
has to be (`as_root`): for starting a process as another user, the database, and the operator's secrets. So whatever its
children put into their own folders, such as a link, cannot make it read or write with root's rights. Under any other
user than root, all of this changes nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

DEVICE_GROUPS = ("render", "video")
"""The names of groups whose members may use accelerators."""


class Account(msgspec.Struct, frozen=True):
    """A user of the system."""

    name: str
    uid: int
    gid: int

    @property
    def is_known(self) -> bool:
        """True if the system has an entry for this user; a unit of systemd may run under a number without one."""
        try:
            pwd.getpwuid(self.uid)
        except KeyError:
            return False
        return True

    def popen_arguments(self) -> dict[str, Any]:
        """Return keyword arguments that make `subprocess` run a program as this user.

        `subprocess` must be called within `as_root`.
        """
        groups = {self.gid}
        for name in DEVICE_GROUPS:
            with contextlib.suppress(KeyError):
                groups.add(grp.getgrnam(name).gr_gid)
        return {"user": self.uid, "group": self.gid, "extra_groups": sorted(groups)}


def environ_of(account: Account | None, home: Path) -> dict[str, str]:
    """Return the changes to the environment of a child that runs as another user.

    home: a folder of that user. account: None: this process's user, and no changes.
    """
    return {} if account is None else {"HOME": str(home), "USER": account.name, "LOGNAME": account.name}


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run under a bare number
        return str(uid)


def this_account() -> Account:
    """Return the user that this process acts as."""
    return Account(user_name(os.geteuid()), os.geteuid(), os.getegid())


def system_account(name: str, fallbacks: Sequence[str] = ()) -> Account | None:
    """Return a system user, which is made if need be, or the first of fallbacks that exists; None where there is none.

    This process must be root.
    """
    if not _exists(name) and (useradd := shutil.which("useradd", path=f"{os.defpath}:/usr/sbin:/sbin")):
        _add_user(useradd, name)
    for each in (name, *fallbacks):
        if _exists(each):
            entry = pwd.getpwnam(each)
            return Account(each, entry.pw_uid, entry.pw_gid)
    return None


def _add_user(useradd: str, name: str) -> None:
    """Make a system user unless another process has made it meanwhile.

    useradd looks for the name before it takes its own lock: if two run at once, the second gives the user of the first
    another number, and what runs or owns files under the first number is nobody's any more.
    """
    etc = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(etc, fcntl.LOCK_EX)
        if not _exists(name):
            shell = ["--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
            subprocess.run([useradd, "--system", "--user-group", *shell, name], check=False, capture_output=True)
    finally:
        os.close(etc)


def other_owner(path: Path) -> Account | None:
    """Return the owner of a path, if this process is root and the owner is another user; otherwise None."""
    found = path.stat()
    if os.geteuid() != 0 or found.st_uid == 0:
        return None
    return Account(user_name(found.st_uid), found.st_uid, found.st_gid)


def give_to_owner(folder: Path) -> None:
    """Give root's files below a folder to the folder's owner, if this process is root and the owner is another user.

    The folder of a unit of systemd is an example: without this, its user could not read the files that root's commands
    put there.
    """
    if (owner := other_owner(folder)) is not None:
        give_below(folder.resolve(), owner.uid, owner.gid)


def give_below(folder: Path, uid: int, gid: int) -> None:
    """Make a user the owner of root's files and folders below a folder.

    Walks by descriptors and follows no link: processes of that user may be running.
    """
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if found.st_uid == 0 and (found.st_nlink == 1 or stat.S_ISDIR(found.st_mode)):
                os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)


def step_down(account: Account) -> None:
    """Make this process, which must be root, act as another user until `step_up`; within `as_root` it is root again."""
    os.setgroups([account.gid])
    os.setegid(account.gid)
    os.seteuid(account.uid)


def step_up() -> None:
    """Regain root's rights after `step_down`; do nothing if none were given up."""
    if _stepped_down():
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def as_root() -> Iterator[None]:
    """Act as root where this process is root and has stepped down; otherwise change nothing."""
    if not _stepped_down():
        yield
        return
    uid, gid = os.geteuid(), os.getegid()
    step_up()
    try:
        yield
    finally:
        os.setegid(gid)
        os.seteuid(uid)


def _stepped_down() -> bool:
    return os.getuid() == 0 and os.geteuid() != 0


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
