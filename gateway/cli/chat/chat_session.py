"""A session of `lorikeet chat`: reads lines, streams answers, and knows a few commands that begin with a slash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from gateway.cli.chat.conversation import Conversation
from gateway.cli.chat.inference import InferenceClient, Usage
from gateway.cli.client import RequestRefused
from gateway.cli.errors import EXIT_OK, CommandFailed, is_text, one_line

HELP = """\
/adapter NAME   talk to an adapter; /adapter lists them, /adapter base leaves it
/model ID       talk to another model; /model says which it is
/system TEXT    tell the model something before everything else; /system off takes it back
/clear          forget what was said
/usage          tokens so far
/exit           leave, as Ctrl-D does
Ctrl-C ends an answer."""

DIM, BOLD, PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""Control characters, which a terminal would act on."""


class Screen:
    """The output of a session. styled: True if it is a terminal that shows styles."""

    def __init__(self, out: TextIO, *, styled: bool) -> None:
        self._out = out
        self._styled = styled
        self._mid_line = False
        self._is_reasoning = False

    def reasoning(self, text: str) -> None:
        """Write a part of the reasoning before an answer on a terminal; a file or a pipe gets the answer alone."""
        if text and self._out.isatty():
            shown = text.translate(_CONTROLS)
            self._write(f"{DIM}{shown}{PLAIN}" if self._styled else shown)
            self._mid_line, self._is_reasoning = not shown.endswith("\n"), True

    def text(self, text: str) -> None:
        """Write a part of an answer, without control characters that a terminal would obey."""
        shown = text.translate(_CONTROLS) if self._out.isatty() else text
        if shown:
            if self._is_reasoning:
                self.end_line()
            self._is_reasoning = False
            self._write(shown)
            self._mid_line = not shown.endswith("\n")

    def end_line(self) -> None:
        """End a line that was begun."""
        if self._mid_line:
            self._write("\n")
            self._mid_line = False

    def note(self, text: str) -> None:
        """Print a message of the session itself, on lines of its own."""
        self.end_line()
        shown = text.translate(_CONTROLS)
        self._write(f"{DIM}{shown}{PLAIN}\n" if self._styled else f"{shown}\n")

    def prompt(self, model: str) -> str:
        # readline must not count what has no width
        """Return the text in front of the person's input."""
        return f"\x01{BOLD}\x02{model}>\x01{PLAIN}\x02 " if self._styled else f"{model}> "

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class Session:
    """A session of questions and answers, to be run once.

    read: returns a line for a prompt; EOFError ends the session.
    """

    def __init__(
        self, client: InferenceClient, conversation: Conversation, screen: Screen, read: Callable[[str], str]
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._screen = screen
        self._read = read
        self._usages: list[Usage] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/adapter": self._adapter,
            "/model": self._model,
            "/system": self._set_system_prompt,
            "/clear": self._clear,
            "/usage": self._usage,
            "/help": lambda _: screen.note(HELP),
        }

    def run(self) -> int:
        """Run the chat until the person leaves. Returns the exit code."""
        self._screen.note(f"{self._conversation.model}; /help lists what else there is")
        while True:
            try:
                line = self._read(self._screen.prompt(self._conversation.model)).strip()
            except EOFError:
                self._screen.note("")
                return EXIT_OK
            except KeyboardInterrupt:
                self._screen.note("\n(Ctrl-D leaves)")
                continue
            except UnicodeDecodeError:
                self._screen.note("that is not UTF-8 text")
                continue
            if line in ("/exit", "/quit"):
                return EXIT_OK
            if line:
                self._run_command(line)

    def _run_command(self, line: str) -> None:
        """Run a command of the session. An error is printed, and the session goes on."""
        try:
            if not is_text(line):
                self._screen.note("that is not UTF-8 text")
            elif line.startswith("/"):
                name, _, rest = line.partition(" ")
                command = self._commands.get(name)
                if command is None:
                    self._screen.note(f"there is no {name}: /help lists what there is")
                else:
                    command(rest.strip())
            else:
                self._ask(line)
        except CommandFailed as error:
            self._screen.note(one_line(str(error)))
        except KeyboardInterrupt:
            self._screen.note("(interrupted)")

    def _ask(self, question: str) -> None:
        parts: list[str] = []
        chunks = self._client.stream_chat(self._conversation.asking(question))
        try:
            for chunk in chunks:
                self._screen.reasoning(chunk.reasoning)
                parts.append(chunk.text)
                self._screen.text(chunk.text)
                if chunk.usage is not None:
                    self._usages.append(chunk.usage)
                if any(choice.finish_reason == "length" for choice in chunk.choices):
                    self._screen.note("(cut off at the most tokens that it may have)")
        except KeyboardInterrupt:
            self._screen.note("(ended)")
        finally:
            chunks.close()
            self._screen.end_line()
            if text := "".join(parts):
                self._conversation.answered(question, text)

    def _adapter(self, name: str) -> None:
        """Switch to an adapter or an alias by its name; the conversation goes on."""
        base = self._conversation.base
        if not name:
            self._list()
        elif name == "base":
            self._switch(base)
        else:
            try:
                self._switch(f"{base}:{name}")
            except RequestRefused as refused:
                if refused.code != "model_not_found":
                    raise
                self._switch(name)

    def _list(self) -> None:
        for model in self._client.models():
            mark = "*" if model.id == self._conversation.model else " "
            self._screen.note(f"{mark} {model.id}")

    def _model(self, model_id: str) -> None:
        if model_id:
            self._switch(model_id)
        else:
            self._screen.note(self._conversation.model)

    def _switch(self, model_id: str) -> None:
        model = self._client.model(model_id)
        self._conversation.model, self._conversation.base = model.id, model.root
        self._screen.note(f"now with {model.id}")

    def _set_system_prompt(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "off" else text
        self._screen.note(f"system: {self._conversation.system or 'nothing'}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._screen.note("forgotten")

    def _usage(self, _: str) -> None:
        self._screen.note(f"the last answer: {_tokens(self._usages[-1:])}")
        self._screen.note(f"this session, {len(self._usages)} answers: {_tokens(self._usages)}")


def _tokens(usages: Sequence[Usage]) -> str:
    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return f"{prompt} prompt tokens ({cached} cached), {completion} completion tokens"
