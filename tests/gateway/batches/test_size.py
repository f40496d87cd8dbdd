"""The time and memory that the largest input file and a hundred batches at once take: to check, to show, to cancel.

At full size the file has 50,000 lines and 200 MB, and times and memory are held to their bounds.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.bench.http import Connection, connect, post
from gateway.domain.batches.line import request_id_of
from tests.figures import figure
from tests.gateway.batches.jobs import CHAT, OPEN, chat_line, file_of, read_batch
from tests.gateway.limits.fleet import Fleet, Key, make_key, running_fleet
from tests.gateway.live import BASE
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

FULL_LINES, FULL_BYTES = 50_000, 200_000_000
LINES, BYTES = 400, 400_000
MAX_CHECK_S, MAX_MB, MAX_SLOWER, MAX_GET_MS, MAX_OLD_S, MAX_CANCEL_S = 20.0, 64, 1.25, 10.0, 1.0, 5.0
CHATS_PER_S = 40
ROUNDS = 5
LOOK_EVERY_S = 0.05
BATCHES, FULL_BATCHES, TOKENS = 6, 100, 20
AT_ONCE, GET_EVERY_S = 20, 0.03  # a project may ask for 50 a second


class Site(msgspec.Struct, frozen=True):
    """A gateway in a process of its own."""

    fleet: Fleet
    produced: Path
    """The file to which the engine writes the id of each token's request."""
    tenant: Key

    @property
    def pid(self) -> int:
        pid = self.fleet.gateways[0].pid
        assert pid is not None
        return pid

    def num_produced(self) -> Counter[str]:
        return Counter(self.produced.read_text().splitlines())


@pytest.fixture(scope="module")
def site(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("size")
    flags = ("--tokens-per-s", "500", "--max-num-seqs", "256", "--produced", str(folder / "produced"))
    with running_fleet(module_dsn, folder, num_gateways=1, engine_flags=flags, jumps_s=(0,)) as fleet:
        yield Site(fleet, folder / "produced", asyncio.run(make_key(module_dsn, "sizes")))


@asynccontextmanager
async def client(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    headers, url = site.tenant.headers, site.fleet.urls[0]
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


def batch_file(num_lines: int, num_bytes: int, *, are_short: bool = False) -> bytes:
    """Return a file with num_lines lines and about num_bytes bytes.

    are_short: True: the prompts are short enough for the model's context, and spaces fill each line; False: the prompts
    fill the lines.
    """
    size = num_bytes // num_lines - len(json.dumps(chat_line(f"line-{num_lines}", "hello"))) - 1
    if are_short:
        texts = (json.dumps(chat_line(f"line-{number}"))[:-1] + " " * size + "}" for number in range(num_lines))
        return file_of(texts)
    return file_of(chat_line(f"line-{number}", "x" * size) for number in range(num_lines))


async def store_file(client: httpx.AsyncClient, content: bytes) -> str:
    """Store a file; return its id."""
    form = {"file": ("lines.jsonl", content)}
    return str((await client.post("/v1/files", files=form, data={"purpose": "batch"})).json()["id"])


async def create_batch(client: httpx.AsyncClient, file_id: str) -> str:
    asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    return str((await client.post("/v1/batches", json=asked)).json()["id"])


async def wait_for_status(client: httpx.AsyncClient, id: str, *statuses: str) -> dict[str, Any]:
    """Wait until a batch has one of these statuses, and return it."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        nonlocal found
        found = await read_batch(client, id)
        return found["status"] in statuses

    await until(is_there, lambda: f"{found}", pause_s=0.05)
    return found


def resident_mb(pid: int, name: str = "VmRSS") -> float:
    """Return the memory of a process in MiB; 0 once the process is gone.

    name: the field of /proc/PID/status: VmRSS for the present memory, VmHWM for its peak.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(f"{name}:")), 0.0)


class MemoryPeak:
    """The highest memory of a gateway and of processes it has started, beyond its memory at the beginning."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from now on
        self._before_mb = resident_mb(pid)
        self._of_children: dict[int, float] = {}

    def look(self) -> None:
        started = " ".join(path.read_text() for path in Path(f"/proc/{self._pid}/task").glob("*/children"))
        for child in map(int, started.split()):
            self._of_children[child] = max(self._of_children.get(child, 0.0), resident_mb(child, "VmHWM"))

    def most_mb(self) -> float:
        return resident_mb(self._pid, "VmHWM") - self._before_mb + sum(self._of_children.values())


async def latencies_ms(connection: Connection, request: bytes, ended: asyncio.Event) -> list[float]:
    """Send CHATS_PER_S requests a second until an event; return each answer's milliseconds after its due time."""
    found, due_s = [], time.perf_counter()
    while not ended.is_set():
        await asyncio.sleep(due_s - time.perf_counter())
        assert await connection.ask(request) == 200
        found.append(1e3 * (time.perf_counter() - due_s))
        due_s = max(due_s + 1 / CHATS_PER_S, time.perf_counter() - 1)
    return found


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def test_the_largest_file_is_checked_in_time_within_little_memory_and_nobody_feels_it(
    site: Site, full: bool
) -> None:
    """The last line of the file is wrong, so no line runs and the batch's error names this line."""
    num_lines, num_bytes = (FULL_LINES, FULL_BYTES) if full else (LINES, BYTES)
    content = batch_file(num_lines, num_bytes)
    wrong = content[: content.rindex(b"\n", 0, -1) + 1] + b'{"custom_id": "last"'
    body = {"model": BASE, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    chat = post(CHAT, site.tenant.secret, json.dumps(body).encode())
    alone_ms: list[float] = []
    beside_ms: list[float] = []
    took_s, took_mb = [], []
    async with client(site) as api:
        file_id = await store_file(api, wrong)
        connection = await connect("127.0.0.1", site.fleet.gateways[0].port)
        for _ in range(ROUNDS if full else 1):
            memory, ended, began_s = MemoryPeak(site.pid), asyncio.Event(), time.monotonic()
            asking = asyncio.create_task(latencies_ms(connection, chat, ended))
            id = await create_batch(api, file_id)
            while (batch := await read_batch(api, id))["status"] == "validating":
                memory.look()
                await asyncio.sleep(LOOK_EVERY_S)
            took_s.append(time.monotonic() - began_s)
            took_mb.append(memory.most_mb())
            ended.set()
            beside_ms.append(p99(await asking))
            assert batch["status"] == "failed"
            assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [
                ("invalid_json_line", num_lines)
            ]
            ended.clear()
            asyncio.get_running_loop().call_later(took_s[-1], ended.set)
            asking = asyncio.create_task(latencies_ms(connection, chat, ended))
            while not ended.is_set():  # the same looks as beside the check, which alone is the difference
                await read_batch(api, id)
                memory.look()
                await asyncio.sleep(LOOK_EVERY_S)
            alone_ms.append(p99(await asking))
        connection.close()
    if full:
        slower = [beside / alone for beside, alone in zip(beside_ms, alone_ms, strict=True)]
        figure(
            f"{num_lines:,} lines, {len(wrong) / 1e6:.0f} MB: checked in {max(took_s):.1f} s at the most, "
            f"{max(took_mb):.0f} MB; p99 of chats {statistics.median(beside_ms):.1f} ms beside, "
            f"{statistics.median(alone_ms):.1f} alone, by rounds {', '.join(f'{ratio:.2f}' for ratio in slower)}"
        )
        assert max(took_s) <= MAX_CHECK_S
        assert max(took_mb) <= MAX_MB
        assert statistics.median(slower) <= MAX_SLOWER


async def test_a_large_batch_is_cancelled_soon_and_makes_no_token_afterwards(site: Site, full: bool) -> None:
    num_lines, num_bytes = (FULL_LINES, FULL_BYTES) if full else (LINES, BYTES)
    async with client(site) as api:
        id = await create_batch(api, await store_file(api, batch_file(num_lines, num_bytes, are_short=True)))
        stored_s = time.monotonic()
        assert (await wait_for_status(api, id, "in_progress"))["request_counts"]["total"] == num_lines
        took_s = time.monotonic() - stored_s

        async def has_begun() -> bool:
            return bool((await read_batch(api, id))["request_counts"]["completed"])

        await until(has_begun, "nothing ran")
        began_s = time.monotonic()
        await api.post(f"/v1/batches/{id}/cancel")
        batch = await wait_for_status(api, id, "cancelled")
        cancelled_s = time.monotonic() - began_s
        produced = site.num_produced()
        await asyncio.sleep(1.0)  # whatever was still computed would show by then
        assert site.num_produced() == produced
        counts = batch["request_counts"]
        assert counts["completed"] + counts["failed"] == counts["total"] == num_lines
    if full:
        figure(f"a batch of {num_lines:,} lines: begun in {took_s:.1f} s, cancelled in {cancelled_s:.1f} s")
        assert took_s <= MAX_CHECK_S and cancelled_s <= MAX_CANCEL_S


async def test_a_hundred_batches_are_shown_at_once_with_counts_that_are_fresh(site: Site, full: bool) -> None:
    num_batches, num_lines = (FULL_BATCHES, 60) if full else (BATCHES, 10)
    content = file_of(chat_line(str(n), max_tokens=TOKENS, ignore_eos=True) for n in range(num_lines))
    took_ms: list[float] = []
    async with client(site) as api:
        file_id = await store_file(api, content)
        ids = [await create_batch(api, file_id) for _ in range(num_batches)]
        line_of = {request_id_of(id, n): id for id in ids for n in range(1, num_lines + 1)}
        connection = await connect("127.0.0.1", site.fleet.gateways[0].port)
        gets = {id: get(f"/v1/batches/{id}", site.tenant.secret) for id in ids}
        open_ids, stale, num_looks, chance = set(ids), [], 0, random.Random(0)
        while open_ids:
            produced, looked_s = site.num_produced(), time.monotonic()
            ended = Counter(line_of[line] for line, num in produced.items() if num == TOKENS and line in line_of)
            for id in chance.sample(ids, min(len(ids), AT_ONCE)):
                began_s = time.perf_counter()
                assert await connection.ask(gets[id]) == 200
                took_ms.append(1e3 * (time.perf_counter() - began_s))
                await asyncio.sleep(GET_EVERY_S)
            await asyncio.sleep(max(0.0, looked_s + MAX_OLD_S - time.monotonic()))
            for id in chance.sample(sorted(open_ids), min(len(open_ids), AT_ONCE)):
                batch = await read_batch(api, id)
                num_looks += 1
                if batch["request_counts"]["completed"] < ended[id]:
                    stale.append((id, batch["request_counts"], ended[id]))
                if batch["status"] not in OPEN:
                    open_ids.remove(id)
                    assert batch["request_counts"]["completed"] == num_lines
        connection.close()
    if full:
        figure(
            f"{num_batches} batches at once: GET p99 {p99(took_ms):.1f} ms of {len(took_ms):,}; "
            f"of {num_looks:,} counts {len(stale)} were older than {MAX_OLD_S:g} s"
        )
        assert p99(took_ms) <= MAX_GET_MS
        assert not stale, stale[:3]


def get(path: str, key: str) -> bytes:
    """Return the bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\r\n".encode()
