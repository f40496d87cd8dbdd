"""Requests of a neighbour that keep others waiting: as expensive as gateways accept them, from many clients at once.

The clients are a process of their own at the lowest priority, since they would be on other machines. A client that is
refused comes again after `REFUSED_S`: hotter floods are held off by the proxy in front.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import asyncpg
import httpx
import msgspec

from adapters.errors import AdapterRejected
from adapters.peft_format import read_adapter
from tests.adapters.folders import CONFIG, Tensors, tensor, tensor_name, write_adapter
from tests.drills.ground import Ground
from tests.gateway.admin.adapter_uploads import CONFIG as CONFIG_NAME
from tests.gateway.admin.adapter_uploads import WEIGHTS
from tests.gateway.billing.generator import generate_usage
from tests.installation.tenants import Key, make_key, make_operator_key, store_operator_key
from tests.patience import PATIENCE_S

REFUSED_S = 0.25
NICENESS = 15
EMAIL, PASSWORD = "ann@example.com", "correct horse battery staple"
HIDDEN, INTERMEDIATE, RANK = 32, 64, 256
"""The sizes of the ground's base "small", and the highest rank."""

LARGEST_BODY = (4 << 20) - 1000
CONTEXT = 32_768
"""The context length in tokens, so large that long prompts are tokenized rather than refused."""


class Site(msgspec.Struct, frozen=True):
    """The gateways and keys that the noise uses."""

    ports: list[int]
    """The ports of the gateways."""
    operator_key: str
    reader_key: str
    key: Key
    """The noisy tenant's key."""
    folder: str
    month: tuple[int, int] = (0, 1)
    """The first and the last moment of the usage to report, in Unix seconds."""

    @property
    def project(self) -> str:
        return f"/v1/organization/projects/{self.key.project_id}"


Act = Callable[[], Awaitable[int]]
"""A function that sends one request, or a few that belong together, and returns the last status."""


class NoiseKind(msgspec.Struct, frozen=True):
    """A kind of noise."""

    name: str
    num_clients: int
    client: Callable[[Site, int], Act]
    """Return the function that the client of this number calls again and again."""
    done: frozenset[int] = frozenset({200})
    """The statuses of requests that were carried out, rather than refused cheaply."""


def request(method: str, path: str, body: bytes, secret: str, content_type: str = "application/json") -> bytes:
    head = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    head += [f"authorization: Bearer {secret}"] if secret else []
    return "\r\n".join([*head, "", ""]).encode() + body


async def send(site: Site, number: int, data: bytes) -> tuple[int, bytes]:
    """Send a request over a new connection from the client's own address; return status and body, (0, b"") if it was
    cut.

    number: the number of the client, which alternates between gateways.
    """
    address = f"127.0.3.{1 + number % 250}"
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", site.ports[number % len(site.ports)], local_addr=(address, 0)
        )
    except OSError:
        return 0, b""
    try:
        writer.write(data)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return (int(head[9:12]), body) if head.startswith(b"HTTP/1.1 ") else (0, b"")
    except OSError:
        return 0, b""
    finally:
        writer.close()


def _again(site: Site, number: int, requests: list[bytes]) -> Act:
    """Return a function that sends one of these requests after the other.

    number: the number of the noisy client.
    """
    turn = number

    async def act() -> int:
        nonlocal turn
        turn += 1
        return (await send(site, turn, requests[turn % len(requests)]))[0]

    return act


def bad_login(site: Site, number: int) -> Act:
    """Return a function that sends logins with wrong passwords, half of them for a person who exists.

    number: the number of the noisy client.
    """
    email = EMAIL if number % 2 else f"person{number}@example.com"
    body = msgspec.json.encode({"email": email, "password": "another horse battery"})
    data = request("POST", "/admin/v1/login", body, "")

    async def act() -> int:
        return (await send(site, number, data))[0]

    return act


def report(site: Site, number: int) -> Act:
    start, end = site.month
    window = f"start_time={start}&end_time={end}"
    groups = "&group_by[]=project_id&group_by[]=model&group_by[]=api_key_id"
    paths = [
        f"/usage/completions?{window}&bucket_width=1d&limit=31{groups}",
        f"/usage/completions?{window}&bucket_width=1m&limit=1440",
        f"/costs?{window}&limit=31&group_by[]=project_id&group_by[]=line_item",
        f"/requests?{window}&limit=100",
        f"/traffic?{window}",
    ]
    return _again(site, number, [request("GET", f"/v1/organization{path}", b"", site.reader_key) for path in paths])


def change_key_limits(site: Site, number: int) -> Act:
    wanted = {"unit": "requests", "window": "day", "max": 1_000_000 + number, "api_key_id": site.key.id}
    body = msgspec.json.encode(wanted | {"model": f"model-{number}"})
    made = request("POST", f"{site.project}/limits", body, site.operator_key)

    async def act() -> int:
        status, reply = await send(site, number, made)
        if status != 200:
            return status
        path = f"{site.project}/limits/{msgspec.json.decode(reply)['id']}"
        return (await send(site, number, request("DELETE", path, b"", site.operator_key)))[0]

    return act


def upload_expensive_adapter(site: Site, number: int) -> Act:
    """Return a function that uploads an adapter with new weights each time, so that no result can be reused.

    number: the number of the noisy client.
    """
    config, weights = ((Path(site.folder) / name).read_bytes() for name in (CONFIG_NAME, WEIGHTS))
    rng = random.Random(number)

    async def act() -> int:
        files = {CONFIG_NAME: config, WEIGHTS: weights[:-4] + rng.randbytes(3) + b"\x3e"}  # its last number, below 1
        made = httpx.Request("POST", "http://x/", data={"name": f"expensive-{number}"}, files=files)
        data = request("POST", f"{site.project}/adapters", made.read(), site.operator_key, made.headers["content-type"])
        return (await send(site, number, data))[0]

    return act


def send_large_bodies(site: Site, number: int) -> Act:
    """Return a function that sends large bodies, of the kinds that take the longest to refuse or to read.

    number: the number of the noisy client.
    """
    user = {"role": "user", "content": "x"}
    arrays = msgspec.Raw(b"[" + b"[]," * (LARGEST_BODY // 3) + b"1]")
    parts = [{"role": "user", "content": [{"type": "text", "text": ""}] * 1500}] * 100
    bodies = [
        ("/v1/chat/completions", {"messages": [user], "max_tokens": 1, "moderation": arrays}),
        ("/v1/chat/completions", {"messages": parts, "max_tokens": 1}),
        ("/v1/embeddings", {"input": arrays}),
        ("/v1/completions", {"prompt": "a" * LARGEST_BODY, "max_tokens": 1}),
        ("/v1/completions", {"prompt": [1] * 380_000, "max_tokens": 1}),
    ]
    data = [
        request("POST", path, msgspec.json.encode({"model": "small"} | body), site.key.secret) for path, body in bodies
    ]
    return _again(site, number, data)


def tokenize(site: Site, number: int) -> Act:
    letters = random.Random(number).choices("abcdefghijklmnopqrstuvwxyz ", k=CONTEXT)
    body = msgspec.json.encode({"model": "small", "prompt": "".join(letters)})
    return _again(site, number, [request("POST", "/tokenize", body, site.key.secret)])


KINDS = {
    kind.name: kind
    for kind in (
        NoiseKind("bad logins", 100, bad_login, frozenset({401})),
        NoiseKind("reports", 50, report),
        NoiseKind("key limits", 8, change_key_limits),
        NoiseKind("expensive adapters", 4, upload_expensive_adapter),
        NoiseKind("4 MiB bodies", 16, send_large_bodies, frozenset({200, 400})),
        NoiseKind("tokenize", 50, tokenize),
    )
}


async def prepare(ground: Ground, kind: str, folder: Path, num_events: int) -> Site:
    """Create a person, the noisy tenant, and the objects that a kind of noise needs: usage to report, or an adapter.

    num_events: the events of usage that a report has to add up.
    """
    dsn, ports = ground.postgres.dsn, [gateway.port for gateway in ground.gateways]
    operator_key, key = await make_operator_key(dsn), await make_key(dsn, "noisy")
    site = Site(ports, operator_key, operator_key, key, str(folder))
    body = msgspec.json.encode({"email": EMAIL, "role": "owner", "password": PASSWORD})
    status, reply = await send(site, 0, request("POST", "/v1/organization/users", body, operator_key))
    assert status == 200, reply
    if kind == "expensive adapters":
        assert await asyncio.to_thread(dearest_adapter, folder) > 0
    if kind == "reports":
        conn = await asyncpg.connect(dsn)
        try:
            made = await generate_usage(conn, num_events)
            reader_key = await store_operator_key(conn, "generated", ("admin_read",))
        finally:
            await conn.close()
        month = int(made.start.timestamp()), int(made.end.timestamp())
        return msgspec.structs.replace(site, reader_key=reader_key, month=month)
    return site


def dearest_adapter(folder: Path) -> int:
    """Write an adapter with as many keys as inspections accept, which match nothing; return their number."""
    sides = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (HIDDEN, HIDDEN))
    sides |= {
        "gate_proj": (HIDDEN, INTERMEDIATE),
        "up_proj": (HIDDEN, INTERMEDIATE),
        "down_proj": (INTERMEDIATE, HIDDEN),
    }
    tensors: Tensors = {}
    for name, (size_in, size_out) in sides.items():
        module = f"{'self_attn' if size_in == size_out else 'mlp'}.{name}"
        tensors[tensor_name(0, module, "A")] = tensor(RANK, size_in, seed=1)
        tensors[tensor_name(0, module, "B")] = tensor(size_out, RANK, seed=2)

    def write(num_keys: int) -> None:
        keys = {f"{number}.*" + "[a-z]?" * 20 + "X": 8 for number in range(num_keys)}
        write_adapter(folder, {**CONFIG, "r": RANK, "rank_pattern": keys, "alpha_pattern": keys}, tensors)

    least, most = 0, 2048
    while most - least > 16:
        middle = (least + most) // 2
        write(middle)
        try:
            read_adapter(folder)
            least = middle
        except AdapterRejected:
            most = middle
    write(least)
    return least


class Noise:
    """A process that sends a kind of requests while it is switched on.

    statuses: the statuses of the requests that the process sent, once it has ended.
    """

    def __init__(self, on: Event, pid: int) -> None:
        self.pid = pid
        self._on = on
        self.statuses: Counter[int] = Counter()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Switch the noise on until the context is left."""
        self._on.set()
        try:
            yield
        finally:
            self._on.clear()


@contextmanager
def neighbour(kind: str, site: Site) -> Iterator[Noise]:
    """Give a neighbour that makes one kind of noise, switched off at first, until the context is left."""
    spawns = multiprocessing.get_context("spawn")
    on, done = spawns.Event(), spawns.Event()
    here, there = spawns.Pipe(duplex=False)
    process = spawns.Process(target=_run, args=(kind, site, on, done, there), daemon=True)
    process.start()
    assert process.pid is not None
    noise = Noise(on, process.pid)
    try:
        assert here.recv() == "ready"
        yield noise
        done.set()
        assert here.poll(PATIENCE_S), "the noise does not end"
        noise.statuses.update(here.recv())
    finally:
        process.kill()
        process.join()


def _run(kind: str, site: Site, on: Event, done: Event, out: Connection) -> None:
    os.nice(NICENESS)
    out.send(dict(asyncio.run(_clients(KINDS[kind], site, on, done, out))))


async def _clients(kind: NoiseKind, site: Site, on: Event, done: Event, out: Connection) -> Counter[int]:
    statuses: Counter[int] = Counter()

    async def client(number: int) -> None:
        act = kind.client(site, number)
        while not done.is_set():
            if not on.is_set():
                await asyncio.sleep(0.05)
                continue
            status = await act()
            statuses[status] += 1
            if status not in kind.done:
                await asyncio.sleep(REFUSED_S)

    clients = [asyncio.create_task(client(number)) for number in range(kind.num_clients)]
    out.send("ready")
    await asyncio.gather(*clients)
    return statuses
