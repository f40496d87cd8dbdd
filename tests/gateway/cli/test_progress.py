"""The progress of a transfer: a bar in a terminal, lines in a file, nothing where output is not wanted."""

from __future__ import annotations

import io

from gateway.cli.progress import Progress

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_changes_and_goes() -> None:
    stream = Terminal()
    progress = Progress("sending", quiet=False, stream=stream)
    progress.show(1 * MIB, 4 * MIB)
    bar = "#" * 7 + " " * 23
    assert stream.getvalue() == f"\rsending [{bar}]  25% 1.0 MiB of 4.0 MiB\x1b[K"
    progress.done()
    assert stream.getvalue().endswith("\r\x1b[K")
    progress = Progress("fetching", quiet=False, stream=(stream := Terminal()))
    progress.show(1 * MIB, None)
    assert stream.getvalue() == f"\rfetching [{' ' * 30}] 1.0 MiB\x1b[K"


def test_progress_in_another_unit_shows_numbers_of_that_unit() -> None:
    progress = Progress("running", quiet=False, stream=(stream := Terminal()), unit="lines")
    progress.show(81, 2000)
    assert "81 of 2,000 lines" in stream.getvalue()


def test_a_file_gets_no_line_of_a_transfer_that_ends_at_once() -> None:
    stream = io.StringIO()
    progress = Progress("sending", quiet=False, stream=stream)
    progress.show(1, 2)
    progress.done()
    assert stream.getvalue() == ""


def test_nothing_is_printed_with_quiet() -> None:
    stream = Terminal()
    progress = Progress("sending", quiet=True, stream=stream)
    progress.show(1, 2)
    progress.done()
    assert stream.getvalue() == ""
