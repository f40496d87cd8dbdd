"""`lorikeet chat` against a live gateway: questions, pipes, sessions, and a terminal whose reader interrupts."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.chat.chat_session import DIM, PLAIN, Screen, Session
from gateway.cli.chat.conversation import Conversation
from gateway.cli.chat.inference import Access, InferenceClient, find_access
from gateway.cli.errors import WrongUsage
from gateway.serve.lock import data_folder_lock
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

COMMAND = [sys.executable, "-m", "gateway.cli", "chat"]


@pytest.fixture
def client(house: House) -> Iterator[InferenceClient]:
    with InferenceClient(Access(house.url, house.acme.key)) as client:
        yield client


def environ(house: House, **more: str) -> dict[str, str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("LORIKEET_", "OPENAI_"))}
    return bare | {"LORIKEET_URL": house.url, "LORIKEET_API_KEY": house.acme.key} | more


def run_chat(house: House, *arguments: str, piped: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environ(house, **more),
        input=piped,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def run_session(client: InferenceClient, *lines: str, **options: int) -> str:
    """Run a chat session with these input lines; return its output."""
    left = iter(lines)

    def read(_: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    out = io.StringIO()
    conversation = Conversation("tiny", base="tiny", options={"max_completion_tokens": 5, **options})
    assert Session(client, conversation, Screen(out, styled=False), read).run() == 0
    return out.getvalue()


def test_a_question_is_answered_as_text_and_as_json(house: House) -> None:
    asked = ("--max-tokens", "6", "--temperature", "0", "hello there")
    plain = run_chat(house, *asked)
    assert (plain.returncode, plain.stderr) == (0, "")
    reply = json.loads(run_chat(house, *asked, "--json").stdout)
    assert plain.stdout.rstrip("\n") == reply["choices"][0]["message"]["content"].rstrip("\n")
    assert reply["usage"]["completion_tokens"] == 6


def test_a_pipe_is_a_question_or_follows_one(house: House) -> None:
    replies = [
        json.loads(run_chat(house, "--json", "--max-tokens", "1", *words, piped=piped).stdout)
        for words, piped in (((), "the brown fox"), (("read this",), "the brown fox"))
    ]
    of_pipe, of_both = (reply["usage"]["prompt_tokens"] for reply in replies)
    assert of_both > of_pipe
    garbled = subprocess.run(COMMAND, env=environ(house), input=b"\xff\xfe", capture_output=True, check=False)
    assert garbled.returncode == 2 and garbled.stderr.endswith(b"the text on standard input is not UTF-8\n")
    nothing = run_chat(house)
    assert nothing.returncode == 2 and nothing.stderr.startswith("lorikeet: no question was given: ")


def test_errors_are_words_that_say_what_to_do(house: House) -> None:
    wrong_key = run_chat(house, "hi", LORIKEET_API_KEY="sk-lk-wrong")
    assert wrong_key.returncode == 1 and "lorikeet key create" in wrong_key.stderr
    wrong_model = run_chat(house, "--model", "tiny:nobody", "hi")
    assert wrong_model.returncode == 1 and "`tiny:nobody` does not exist" in wrong_model.stderr
    nobody = run_chat(house, "hi", LORIKEET_URL="http://127.0.0.1:1")
    assert nobody.returncode == 3 and "lorikeet serve" in nobody.stderr
    for failed in (wrong_key, wrong_model, nobody):
        assert failed.stderr.count("\n") == 1 and "Traceback" not in failed.stderr


def test_a_session_switches_adapters_and_counts_tokens(house: House, client: InferenceClient) -> None:
    shown = run_session(
        client, "hello", f"/adapter {house.acme.adapter}", "hello", "/adapter", "/adapter base", "/usage"
    )
    assert f"now with tiny:{house.acme.adapter}\n" in shown
    assert f"* tiny:{house.acme.adapter}\n" in shown and "  tiny\n" in shown
    assert shown.index("now with tiny:") < shown.rindex("now with tiny\n")
    assert "this session, 2 answers: " in shown and "10 completion tokens" in shown


def test_a_session_goes_on_after_refused_commands(house: House, client: InferenceClient) -> None:
    shown = run_session(
        client, "/adapter poet", "/sing", "/model nothing", "/system be brief", "/system", "/clear", "hello", "/help"
    )
    assert "The model `poet` does not exist" in shown, "another tenant's adapter"
    assert "there is no /sing" in shown and "`nothing` does not exist" in shown
    assert shown.count("system: be brief") == 2 and "/adapter NAME" in shown


def test_earlier_messages_are_sent_with_the_next_question(client: InferenceClient) -> None:
    conversation = Conversation("tiny", system="be brief")
    conversation.answered("one", "two")
    asked = conversation.asking("three")["messages"]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user"]
    conversation.clear()
    assert [message["content"] for message in conversation.asking("three")["messages"]] == ["be brief", "three"]


def test_a_key_of_the_data_folder_goes_to_no_other_server(house: House) -> None:
    with pytest.raises(WrongUsage, match="LORIKEET_API_KEY"):
        find_access("http://elsewhere.example", None, {})
    assert find_access("http://elsewhere.example/v1/", "k", {}) == Access("http://elsewhere.example", "k")
    with pytest.raises(WrongUsage, match="is not a URL"):
        find_access("elsewhere", "k", {})


def test_the_demos_key_goes_to_the_data_folders_own_running_server_alone(tmp_path: Path) -> None:
    (tmp_path / "demo.env").write_text("OPENAI_API_KEY=sk-lk-demo\n")
    here = {"LORIKEET_DATA_DIR": str(tmp_path), "LORIKEET_PORT": "8099"}
    with data_folder_lock(tmp_path, "http://127.0.0.1:8099"):
        assert find_access(None, None, here) == Access("http://127.0.0.1:8099", "sk-lk-demo")
        for elsewhere in ({"LORIKEET_HOST": "10.0.0.5"}, {"LORIKEET_PORT": "8098"}):
            with pytest.raises(WrongUsage, match="no key"):
                find_access(None, None, here | elsewhere)
            assert find_access(None, "k", here | elsewhere).key == "k"
    with pytest.raises(WrongUsage, match="no key"):
        find_access(None, None, here)


def test_an_interrupt_ends_the_answer_and_not_the_session(house: House) -> None:
    """A real terminal gets Ctrl-C during an answer, then another question, then Ctrl-D."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "--max-tokens", "400"],
        env=environ(house, TERM="xterm", NO_COLOR="1"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(follower)
    terminal = Terminal(leader)
    try:
        terminal.wait("tiny> ")
        has_ended = False
        while not has_ended:  # an answer may be over before a busy machine has interrupted it
            terminal.send("tell me a long story\r")
            terminal.wait("story\r\n", more=20)
            terminal.send("\x03")
            has_ended = terminal.wait_for_one_of("(ended)", "(interrupted)", "(Ctrl-D leaves)") == "(ended)"
            terminal.wait("tiny> ")
        terminal.send("/usage\r")
        terminal.wait("this session, ", "tiny> ")
        terminal.send("\x04")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _take_terminal() -> None:
    """Make standard input the controlling terminal of this process, and let SIGINT interrupt it.

    A shell's background processes, and their children, ignore SIGINT.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """The controlling end of a pseudoterminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._shown = ""

    def send(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait(self, *texts: str, more: int = 0) -> None:
        """Wait until these texts were shown one after another, and `more` further characters."""
        deadline = time.monotonic() + PATIENCE_S
        for text in texts:
            while text not in self._shown:
                self._read(deadline)
            self._shown = self._shown.partition(text)[2]
        while len(self._shown) < more:
            self._read(deadline)

    def wait_for_one_of(self, *texts: str) -> str:
        """Return the first of these texts to be shown."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := [text for text in texts if text in self._shown]):
            self._read(deadline)
        (first,) = found
        self._shown = self._shown.partition(first)[2]
        return first

    def _read(self, deadline: float) -> None:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing more came after {self._shown!r}"
        self._shown += os.read(self._descriptor, 4096).decode(errors="replace")


class Screenful(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_reasoning_is_dimmed_on_a_terminal_and_is_no_part_of_a_pipe() -> None:
    shown = []
    for out, styled in ((Screenful(), True), (Screenful(), False), (io.StringIO(), False)):
        screen = Screen(out, styled=styled)
        for reasoning, text in (("Why?\x1b", ""), (" So.", ""), ("", "Four"), ("", "!")):
            screen.reasoning(reasoning)
            screen.text(text)
        screen.end_line()
        shown.append(out.getvalue())
    assert shown == [f"{DIM}Why?{PLAIN}{DIM} So.{PLAIN}\nFour!\n", "Why? So.\nFour!\n", "Four!\n"]
