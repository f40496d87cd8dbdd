"""`serve` started by root runs its children as another user, and itself acts as that user except for a few moments."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.postgres.embedded import SOCKET_NAME, EmbeddedPostgres
from gateway.serve import account as accounts
from gateway.serve.account import give_data_files, server_account
from gateway.serve.supervisor import Child
from gateway.settings import Settings
from gateway.support.accounts import Account, system_account, this_account
from tests.modes import open_to_others
from tests.patience import PATIENCE_S

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its children another user")


@pytest.fixture(scope="module")
def account() -> Account:
    found = system_account(accounts.ACCOUNT_NAME)
    assert found is not None
    return found


@pytest.fixture
def reached(open_folder: Path) -> Iterator[Path]:
    """Give an empty data folder that every user can pass through."""
    folder = open_folder / "account"
    folder.mkdir(mode=0o711)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_started_by_somebody_else_than_root_everything_runs_as_they_do() -> None:
    if os.geteuid() != 0:
        assert server_account(Settings(), lambda line: None) is None
    assert this_account().uid == os.geteuid()


@as_root
@pytest.mark.skipif(shutil.which("userdel") is None, reason="no tool to remove the user that the test makes")
def test_processes_that_make_the_same_user_at_once_agree_on_its_number() -> None:
    name = f"lk-test-{os.getpid()}"
    ask = f"from gateway.support.accounts import system_account; print(system_account({name!r}).uid)"
    try:
        started = [subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True) for _ in range(8)]
        seen = {process.communicate(timeout=PATIENCE_S)[0] for process in started}
        assert seen == {f"{pwd.getpwnam(name).pw_uid}\n"}
    finally:
        subprocess.run(["userdel", name], check=True)


@as_root
def test_a_child_runs_as_its_user_without_a_group_or_a_capability_of_roots(account: Account, reached: Path) -> None:
    command = ["sh", "-c", "id -u; id -g; grep -E 'Groups|CapEff' /proc/self/status"]
    log = reached / "log"
    child = Child("child", command, {"PATH": os.defpath}, log, account=account)
    child.start()
    assert child._process is not None
    child._process.wait(PATIENCE_S)
    uid, gid, groups, capabilities = log.read_text().splitlines()
    assert (int(uid), int(gid)) == (account.uid, account.gid)
    assert "0" not in groups.split()[1:] and str(account.gid) in groups.split()
    assert int(capabilities.split()[1], 16) == 0


@as_root
def test_serve_is_root_again_only_while_a_step_needs_it(account: Account, reached: Path) -> None:
    (reached / "secret").write_text("of root")
    (reached / "secret").chmod(0o600)
    (reached / "theirs").mkdir()
    os.chown(reached / "theirs", account.uid, account.gid)
    script = """
import os, sys
from pathlib import Path
from gateway.support.accounts import Account, as_root, step_down, step_up
folder, uid, gid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
step_down(Account("server", uid, gid))
try:
    (folder / "secret").read_text()
    sys.exit("it read root's secret")
except PermissionError:
    pass
with as_root():
    assert (folder / "secret").read_text() == "of root"
(folder / "theirs" / "made").touch()
assert (folder / "theirs" / "made").stat().st_uid == uid
assert os.getgroups() == [gid]
step_up()
assert (folder / "secret").read_text() == "of root"
"""
    command = [sys.executable, "-c", script, str(reached), str(account.uid), str(account.gid)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)


@as_root
def test_files_of_the_data_folder_are_handed_over_but_not_the_targets_of_links(
    account: Account, reached: Path, tmp_path: Path
) -> None:
    settings = Settings(data_dir=reached)
    for name in ("adapters/abc/adapter_config.json", "journal/one", "operator.key", "content.key", "postgres.password"):
        (reached / name).parent.mkdir(exist_ok=True, parents=True)
        (reached / name).touch(mode=0o600)
    mine = tmp_path / "mine"
    mine.touch(mode=0o600)
    (reached / "adapters" / "planted").symlink_to(mine)
    (reached / "journal" / "planted").symlink_to(tmp_path)
    (reached / "uploads").symlink_to(tmp_path)
    for folder in reached.rglob("*/"):
        if not folder.is_symlink():
            folder.chmod(0o700)
    give_data_files(settings, account)

    def owner(name: str) -> int:
        return (reached / name).lstat().st_uid

    theirs = (
        "adapters",
        "adapters/abc",
        "adapters/abc/adapter_config.json",
        "journal/one",
        "content.key",
        "log",
        "run",
    )
    assert {owner(name) for name in theirs} == {account.uid}
    assert {owner(name) for name in ("", "operator.key", "postgres.password")} == {0}
    assert mine.stat().st_uid == 0 and tmp_path.stat().st_uid == 0
    assert open_to_others(reached) == []
    assert stat.S_IMODE(reached.stat().st_mode) == 0o1771, "they add files, and remove none of root's"
    before = {path: path.lstat().st_uid for path in reached.rglob("*")}
    give_data_files(settings, account)
    assert {path: path.lstat().st_uid for path in reached.rglob("*")} == before


@as_root
def test_where_they_cannot_reach_the_data_folder_it_is_said_and_nothing_changes(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    said: list[str] = []
    assert server_account(Settings(data_dir=tmp_path), said.append) is None
    assert len(said) == 1 and "lorikeet-server cannot reach" in said[0] and "run as root" in said[0]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700 and list(tmp_path.iterdir()) == []


@as_root
def test_the_database_opens_its_socket_to_their_group_and_to_nobody_else(account: Account, reached: Path) -> None:
    server = EmbeddedPostgres(reached, reachable_by=account.gid)
    server.start()
    try:
        socket = reached / "postgres/socket" / SOCKET_NAME
        assert (reached / "postgres/cluster").stat().st_uid == pwd.getpwnam("lorikeet").pw_uid != account.uid
        assert _may(account.uid, account.gid, "-w", socket)
        assert not _may(account.uid, account.gid, "-r", reached / "postgres/cluster/PG_VERSION")
        assert not _may(account.uid, account.gid, "-r", reached / "postgres")
        nobody = pwd.getpwnam("nobody")
        assert not _may(nobody.pw_uid, nobody.pw_gid, "-w", socket)
    finally:
        server.stop()
    server = EmbeddedPostgres(reached)
    server.start()
    try:
        assert not _may(account.uid, account.gid, "-w", socket), "another start closes it again"
    finally:
        server.stop()


def _may(uid: int, gid: int, kind: str, path: Path) -> bool:
    command = ["test", kind, str(path)]
    return subprocess.run(command, user=uid, group=gid, extra_groups=[], check=False).returncode == 0
