"""The confined process can do nothing but compute within its limits, and the way it ended is always reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from adapters.sandbox import seccomp
from adapters.sandbox.confined import Limits
from adapters.sandbox.run import MAX_REPLY_BYTES, LimitExceeded, SandboxBroken, run_confined

ESCAPES = "tests.adapters.sandbox.escapes"
X32 = 0x40000000  # the bit of system calls with 32-bit pointers on x86-64
LIMITS = Limits(cpu_s=2, wall_s=30.0, memory_bytes=64 << 20, file_bytes=1 << 20)


async def run(argument: str, limits: Limits = LIMITS, descriptors: tuple[int, ...] = ()) -> bytes:
    return await run_confined(ESCAPES, argument.encode(), descriptors, limits)


def children() -> set[str]:
    """Return the ids of the processes that this one started and that have not ended."""
    return {line for path in Path("/proc/self/task").glob("*/children") for line in path.read_text().split()}


def test_nothing_outside_can_be_reached(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("untouched")
    mode = (tmp_path / "there").stat().st_mode
    results = msgspec.json.decode(asyncio.run(run(f"escape {tmp_path}")), type=dict[str, str])
    assert len(results) > 35
    assert [name for name, result in results.items() if result == "done"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "untouched"
    assert (tmp_path / "there").stat().st_mode == mode


async def test_the_parents_secrets_are_not_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://secret")
    environment = msgspec.json.decode(await run("environment"), type=dict[str, str])
    assert "secret" not in str(environment)


async def test_the_process_cannot_write_to_its_parents_log(capfd: pytest.CaptureFixture[str]) -> None:
    await run("talk")
    assert "forged" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argument", "limits", "reason"),
    [
        ("spin", msgspec.structs.replace(LIMITS, cpu_s=1), "it took more than 1 s of processor time"),
        ("hoard", LIMITS, "it takes more than 64 MiB of memory"),
        (f"answer {MAX_REPLY_BYTES + 1}", LIMITS, "its answer has more than 1048576 bytes"),
        ("crash", LIMITS, "it was ended by SIGSEGV"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
async def test_a_limit_ends_the_process_and_is_named(argument: str, limits: Limits, reason: str) -> None:
    before = children()
    with pytest.raises(LimitExceeded, match=f"^{reason}$"):
        await run(argument, limits)
    assert children() == before


async def test_the_process_has_a_lower_priority_than_its_parent() -> None:
    """The process has a session of its own, since niceness counts within one session alone."""
    nice = os.nice(0)
    assert await run("niceness", msgspec.structs.replace(LIMITS, niceness=7)) == f"{min(19, nice + 7)} True".encode()


async def test_a_process_that_gets_no_time_says_nothing_about_the_file() -> None:
    before = children()
    with pytest.raises(SandboxBroken, match=r"^the confined process had too little processor time within 1 s$"):
        await run("hang 1", msgspec.structs.replace(LIMITS, wall_s=1.0))
    assert children() == before


async def test_a_file_can_be_written_up_to_its_limit_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        assert await run(f"write {file.fileno()} {2 << 20}", descriptors=(file.fileno(),)) == b"1048576"
        with pytest.raises(SandboxBroken, match="File too large"):
            await run(f"write {file.fileno()} 1", descriptors=(file.fileno(),))
    assert path.stat().st_size == 1 << 20


async def test_a_descriptor_that_was_not_handed_over_is_not_there(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(SandboxBroken, match="Bad file descriptor"):
        os.set_inheritable(file.fileno(), True)
        await run(f"write {file.fileno()} 1")


@pytest.mark.parametrize(
    ("argument", "message"),
    [("fail", r"ZeroDivisionError: .* at escapes\.py:\d+"), ("leave", "ended with status 3 and no answer")],
)
async def test_a_fault_of_the_program_is_not_blamed_on_the_file(argument: str, message: str) -> None:
    with pytest.raises(SandboxBroken, match=message):
        await run(argument)


async def test_a_caller_that_gives_up_leaves_no_process(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    before = children()
    task = asyncio.create_task(run(f"hang {write_end}", descriptors=(write_end,)))
    await asyncio.to_thread(os.read, read_end, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == before


def test_kill_9_of_the_parent_ends_the_process(pipe: tuple[int, int]) -> None:
    """Parent and child hold the pipe's writing end, so that the reader is at its end once both are gone."""
    read_end, write_end = pipe
    program = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[1]);"
        "from adapters.sandbox.run import run_confined; from adapters.sandbox.confined import Limits;"
        f"asyncio.run(run_confined({ESCAPES!r}, b'hang {write_end}', ({write_end},), Limits(5, 60.0, 64 << 20, 1)))"
    )
    root = str(Path(seccomp.__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", program, root], pass_fds=[write_end])
    os.close(write_end)
    assert os.read(read_end, 1) == b"!"
    parent.kill()
    parent.wait()
    ready, _, _ = select.select([read_end], [], [], 30)
    assert ready == [read_end]
    assert os.read(read_end, 1) == b""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    for end in (read_end, write_end):
        with contextlib.suppress(OSError):  # closed by the test
            os.close(end)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_admits_what_is_listed_and_nothing_else(machine: str) -> None:
    """The filter is interpreted as the kernel does, over all numbers and both architectures."""
    column = ("x86_64", "aarch64").index(machine)
    code = seccomp.program(machine)
    arch = (0xC000003E, 0xC00000B7)[column]
    listed = {numbers[column] for numbers in seccomp.ALLOWED.values()}
    found = {number for number in [*range(1024), *range(X32, X32 + 1024)] if interpret(code, number, arch) == "allow"}
    assert found == listed
    other = (0xC00000B7, 0xC000003E)[column]
    assert {interpret(code, number, other) for number in range(1024)} == {"kill"}


def interpret(code: bytes, number: int, arch: int) -> str:
    """Run classic BPF over struct seccomp_data, of which the filter reads `nr` at 0 and `arch` at 4."""
    instructions = list(struct.iter_unpack("=HBBI", code))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, k = instructions[at]
        at += 1
        if operation == 0x20:
            accumulator = {0: number, 4: arch}[k]
        elif operation == 0x15:
            at += if_true if accumulator == k else if_false
        else:
            return {0x80000000: "kill", 0x7FFF0000: "allow", 0x00050001: "refuse"}[k]


def test_a_machine_without_a_filter_is_refused_by_name() -> None:
    with pytest.raises(OSError, match="no system-call filter is written for riscv64"):
        seccomp.program("riscv64")
