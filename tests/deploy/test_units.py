"""systemd takes the units of `deploy/systemd`, finds them closed, and their commands are ones that gateways and
engines take."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.agent.agent import LEAVE_S
from gateway.agent.steps import STOP_S
from gateway.settings import settings_table
from tests.documents import PRESENT, REPOSITORY, blocks

UNITS = REPOSITORY / "deploy/systemd"
MOST_EXPOSED = {
    "lorikeet-gateway@.service": 1.5,
    "lorikeet-migrate.service": 1.5,
    "lorikeet-archive.service": 1.5,
    "lorikeet-engine.service": 2.0,
}
"""The highest exposure level, of 10, that `systemd-analyze security` may report for a unit."""

ANALYZE = shutil.which("systemd-analyze")


def variables(name: str) -> dict[str, str]:
    """Return the environment variables that a unit sets."""
    lines = re.findall(r"^Environment=(.+)$", (UNITS / name).read_text(), re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    for path in UNITS.iterdir():
        name = path.name.replace("@.", "@1.")
        (tmp_path / name).write_text(path.read_text().replace("/opt/lorikeet/bin/lorikeet", "/bin/true"))
    units = sorted(str(path) for path in tmp_path.iterdir() if path.suffix in (".service", ".socket"))
    command = [str(ANALYZE), "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", MOST_EXPOSED)
def test_a_unit_is_closed_to_what_it_does_not_need(name: str) -> None:
    threshold = f"--threshold={round(10 * MOST_EXPOSED[name])}"
    command = [str(ANALYZE), "security", "--offline=true", "--no-pager", threshold, str(UNITS / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:]


@pytest.mark.parametrize("name", MOST_EXPOSED)
def test_a_unit_sets_variables_that_there_are_and_reads_secrets_from_files(name: str) -> None:
    known = {row.name for row in settings_table()}
    ours = {each for each in variables(name) if each.startswith(("LORIKEET_", "DATABASE_"))}
    assert {each.removesuffix("_FILE") for each in ours} <= known
    credentials = set(re.findall(r"^LoadCredential=([\w-]+):", (UNITS / name).read_text(), re.MULTILINE))
    assert {value for each, value in variables(name).items() if each.endswith("_FILE")} == {
        f"%d/{credential}" for credential in credentials
    }


@pytest.mark.parametrize("name", [name for name in PRESENT if name.startswith("deploy/")])
def test_a_file_of_variables_has_comments_on_lines_of_their_own(name: str) -> None:
    """systemd takes a comment behind a value for a part of the value."""
    lines = [line for text in blocks(name, "sh") for line in text.splitlines()]
    assert [line for line in lines if re.match(r"(LORIKEET_|DATABASE_)\w+=\S+\s+#", line)] == []


@pytest.mark.parametrize("name", MOST_EXPOSED)
def test_a_unit_lets_a_thread_lower_its_priority(name: str) -> None:
    """Passwords are hashed and files are checked at a lower priority, so a unit must not deny the calls of
    `@resources`."""
    filters = re.findall(r"^SystemCallFilter=~(.+)$", (UNITS / name).read_text(), re.MULTILINE)
    assert filters and "@resources" not in " ".join(filters).split()


def test_systemd_waits_until_engines_have_ended_what_they_run() -> None:
    name = "lorikeet-engine.service"
    text = (UNITS / name).read_text()
    assert re.search(r"^ExecStart=\S+ agent --drain-engines$", text, re.MULTILINE)
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    drain_s = int(variables(name)["LORIKEET_REPLICA_DRAIN_SECONDS"])
    assert int(stop_s) >= drain_s + LEAVE_S + STOP_S


def test_systemd_waits_for_lame_duck_and_drain_and_15_seconds_more() -> None:
    name = "lorikeet-gateway@.service"
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)$", (UNITS / name).read_text(), re.MULTILINE)
    found = variables(name)
    waits_s = int(found["LORIKEET_LAME_DUCK_SECONDS"]) + int(found["LORIKEET_DRAIN_SECONDS"])
    assert int(stop_s) == waits_s + 15
