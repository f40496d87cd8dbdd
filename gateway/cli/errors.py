"""The failures of a command, and the exit codes that scripts may rely on."""

from __future__ import annotations

from gateway.cli import EXIT_INTERRUPTED

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_OPEN = 4


class CommandFailed(Exception):
    """The error for a command that was refused or failed; the message is one line with the reason."""

    exit_code = EXIT_FAILED


class WrongUsage(CommandFailed):
    """The error for words of the command that contradict each other or have no meaning."""

    exit_code = EXIT_USAGE


class WaitingEnded(CommandFailed):
    """The error after Ctrl-C, which ended the waiting for something that goes on at the server."""

    exit_code = EXIT_INTERRUPTED


class ServerUnreachable(CommandFailed):
    """The error for a server that does not answer; the message says how to start one."""

    exit_code = EXIT_UNREACHABLE


def one_line(message: str) -> str:
    """Return the message of an error on one line."""
    return " ".join(message.split())


def is_text(word: str) -> bool:
    """Tell whether Python could decode a text: bytes that are not UTF-8 come in as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in word)
