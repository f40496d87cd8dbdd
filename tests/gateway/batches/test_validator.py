"""The process that checks input files: hostile files are named by line, in bounded memory, however their bytes come."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from typing import Any

import pytest

from gateway.batches.validator import Checker
from tests.gateway.batches.jobs import CHAT, chat_line, file_of

MAX_LINE_BYTES = 1 << 20
MAX_MB = 64
GOOD = json.dumps(chat_line("good", "ein Löffel 🥄"), ensure_ascii=False).encode()

CHECK_AND_TELL = """
import sys
from gateway.batches.validator import main
main(sys.argv[1], int(sys.argv[2]))
sys.stderr.write(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
"""The source of a program that checks its standard input, and prints the peak of its memory."""

BAD = "invalid_json_line"
DEEP = b", " + b'"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

# The content of each file, its faults as (code, line), and the number of its good lines.
HOSTILE: dict[str, tuple[bytes, list[tuple[str, int | None]], int]] = {
    "UTF-8 cut in a character": (GOOD + b"\n" + GOOD[: GOOD.index(b"\xf0") + 2] + b"\n", [(BAD, 2)], 1),
    "a lone surrogate": (GOOD.replace(b'"good"', b'"\\ud800"'), [(BAD, 1)], 0),
    "a NUL between lines": (GOOD + b"\n\0\n", [(BAD, 2)], 1),
    "a NUL within a line": (GOOD.replace(b"good", b"go\0d"), [(BAD, 1)], 0),
    "a BOM in the second line": (GOOD + b"\n\xef\xbb\xbf" + GOOD, [(BAD, 2)], 1),
    "UTF-16": (f"\ufeff{GOOD.decode()}".encode("utf-16-le"), [(BAD, 1)], 0),
    "a line of 10 MB": (GOOD + b'\n{"custom_id": "' + b"x" * 10_000_000 + b'"}\n', [("line_too_long", 2)], 1),
    "10 MB without an end": (b"[" * 10_000_000, [("line_too_long", 1)], 0),
    "deep nesting": (GOOD[:-1] + DEEP, [(BAD, 1)], 0),
    "carriage returns alone": (GOOD + b"\r" + GOOD, [(BAD, 1)], 0),
    "a number of a megabyte": (b'{"custom_id": ' + b"9" * 1_000_000 + b"}", [("missing_required_parameter", 1)], 0),
    "thousands of bad lines": (b"{\n" * 5_000, [(BAD, line) for line in range(1, 101)], 0),
    "nothing": (b"", [("empty_file", None)], 0),
}


def faults_and_good_lines(output: bytes) -> tuple[list[tuple[str, int | None]], int]:
    """Return the faults in the output of the checking process, and the number of good lines."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    faults = [(error["code"], error["line"]) for row in rows for error in row.get("errors", [])]
    return faults, rows[-1]["total"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_named_by_line_in_bounded_memory(name: str) -> None:
    content, faults, num_good = HOSTILE[name]
    command = [sys.executable, "-c", CHECK_AND_TELL, CHAT, str(MAX_LINE_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            output, told = process.communicate(content)
        except BrokenPipeError:
            output, told = process.communicate()  # it has read enough
    assert process.returncode == 0, told
    assert faults_and_good_lines(output) == (faults, num_good)
    assert int(told.split()[-2]) / 1024 < MAX_MB, told


@pytest.mark.parametrize(
    ("line", "why"), [(b"[]", "is not a JSON object"), (b"1", "is not a JSON object"), (b"{,}", "is not parseable")]
)
def test_a_line_that_is_no_object_is_told_from_one_that_is_no_json(line: bytes, why: str) -> None:
    out = io.BytesIO()
    checker = Checker(CHAT, MAX_LINE_BYTES, out)
    checker.take(line)
    checker.end()
    assert why in json.loads(out.getvalue().splitlines()[0])["errors"][0]["message"]


def test_a_file_is_checked_alike_however_its_bytes_are_split() -> None:
    content = (
        b"\xef\xbb\xbf"
        + file_of([chat_line(f"{n}", "Löffel 🥄") if n % 5 else "{" for n in range(60)])
        + b"\r\n"
        + GOOD
    )
    seen = set()
    for seed in range(40):
        chance, out = random.Random(seed), io.BytesIO()
        checker, start = Checker(CHAT, MAX_LINE_BYTES, out), 0
        while start < len(content):
            size = chance.choice((1, 2, 3, 7, 1000))
            checker.take(content[start : start + size])
            start += size
        checker.end()
        seen.add(out.getvalue())
    assert len(seen) == 1
    faults, num_good = faults_and_good_lines(seen.pop())
    assert faults == [("invalid_json_line", n) for n in range(1, 61, 5)] and num_good == 49
