"""`lorikeet chat`: talk to a model of a running server, in a session or with one question."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import EXIT_OK, WrongUsage
from gateway.cli.output import print_json
from gateway.cli.verbs import add_command

if TYPE_CHECKING:
    from gateway.cli.chat.chat_session import Screen
    from gateway.cli.chat.conversation import Conversation
    from gateway.cli.chat.inference import InferenceClient, Model
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet chat` to the command line."""
    chat = add_command(
        verbs,
        "chat",
        _run,
        "Talk to a model of a running server: in a session, or with one question, which may come "
        "from a pipe. The server and the key come from the flags, from LORIKEET_URL and "
        "LORIKEET_API_KEY, or from the demo in the data folder. /help lists the commands of a "
        "session.",
    )
    chat.add_argument("question", nargs="?", metavar="QUESTION", help="question to ask; print the answer and end")
    chat.add_argument(
        "--model", metavar="ID", help="id of the model, such as base or base:adapter (default: the base model)"
    )
    chat.add_argument("--system", metavar="TEXT", help="text of the system message")
    chat.add_argument(
        "--temperature", type=float, metavar="T", help="randomness of the answer, 0 to 2 (default: the model's)"
    )
    chat.add_argument(
        "--max-tokens", type=int, metavar="N", help="largest number of tokens of an answer (default: the server's)"
    )
    chat.add_argument(
        "--url", metavar="URL", help="URL of the server (default: LORIKEET_URL, or the server of the data folder)"
    )
    chat.add_argument("--key", metavar="KEY", help="API key (default: LORIKEET_API_KEY, or the key of the demo)")


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.chat.chat_session import Screen, Session
    from gateway.cli.chat.conversation import Conversation
    from gateway.cli.chat.inference import InferenceClient, find_access

    with contextlib.suppress(ImportError):  # where Python was built without it, lines have no history
        import readline  # noqa: F401

    question = _question(arguments.question)
    if arguments.json and question is None:
        raise WrongUsage("--json needs a question")
    with InferenceClient(find_access(arguments.url, arguments.key, environ)) as client:
        model = client.model(arguments.model) if arguments.model else _base(client)
        options = {"temperature": arguments.temperature, "max_completion_tokens": arguments.max_tokens}
        conversation = Conversation(
            model.id,
            base=model.root,
            system=arguments.system,
            options={name: value for name, value in options.items() if value is not None},
        )
        screen = Screen(sys.stdout, styled=sys.stdout.isatty() and not environ.get("NO_COLOR"))
        if question is None:
            return Session(client, conversation, screen, input).run()
        return _ask_once(client, conversation, screen, question, as_json=arguments.json)


def _ask_once(
    client: InferenceClient, conversation: Conversation, screen: Screen, question: str, *, as_json: bool
) -> int:
    body = conversation.asking(question)
    if as_json:
        print_json(client.chat(body))
        return EXIT_OK
    try:
        for chunk in client.stream_chat(body):
            screen.reasoning(chunk.reasoning)
            screen.text(chunk.text)
    finally:
        screen.end_line()
    return EXIT_OK


def _base(client: InferenceClient) -> Model:
    """Return the base model, or the first model that a key may call if the key is held to some."""
    models = client.models()
    if not models:
        raise WrongUsage("this API key may not call any model")
    return next((model for model in models if model.parent is None), models[0])


def _question(given: str | None) -> str | None:
    """Return the question of the command line and a pipe, together; None for a session.

    given: the question of the command line; None where it has none.

    Raises WrongUsage: when there is no question at all, or the pipe's text is not UTF-8.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return given
    try:
        piped = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise WrongUsage("the text on standard input is not UTF-8") from None
    question = "\n\n".join(part for part in (given, piped.strip()) if part)
    if not question:
        raise WrongUsage("no question was given: pass a question, or run `lorikeet chat` in a terminal")
    return question
