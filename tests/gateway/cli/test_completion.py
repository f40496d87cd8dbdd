"""Real shells complete the commands of `lorikeet` by the script that `lorikeet completion` prints."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.cli.server.completion import SHELLS

ASK = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_lorikeet
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"], {}) == 0
    path = tmp_path / "lorikeet.bash"
    path.write_text(capsys.readouterr().out)
    return path


def completed(script: Path, *words: str) -> set[str]:
    """Return the completions that bash offers for the last of these words."""
    text = ASK.format(script=shlex.quote(str(script)), words=" ".join(map(shlex.quote, ("lorikeet", *words))))
    done = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("ten",), {"tenant"}),
        (("tenant", "cr"), {"create"}),
        (("migrate", "--f"), {"--first-pool"}),
        (("serve", "--demo", ""), {"one", "two"}),
        (("--version", "doc"), {"doctor"}),
        (("completion", ""), {"bash", "zsh", "-h", "--help"}),
        (("gateway", "--fd", ""), set()),
        (("no-such-command", "--x"), set()),
    ],
    ids=str,
)
def test_bash_offers_what_may_follow(script: Path, words: tuple[str, ...], offered: set[str]) -> None:
    assert completed(script, *words) == offered


def test_every_shell_takes_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main(["completion", shell], {}) == 0
        path = tmp_path / shell
        path.write_text(capsys.readouterr().out)
        if program := shutil.which(shell):
            subprocess.run([program, "-n", str(path)], check=True)
