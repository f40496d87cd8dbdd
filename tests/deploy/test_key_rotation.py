"""The keys of hosts, and those that servers of other makers ask for, are rotated while requests come; none fails."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from engine.curve import SECRET_NAME
from gateway.db.pool import Database
from gateway.db.pools.hosts import list_hosts, list_keys
from gateway.settings import Settings
from gateway.support.host import host_id, host_keys, link_folder
from tests.deploy.commands import lorikeet
from tests.deploy.gateways import OwnPort
from tests.deploy.test_upgrade import site_of
from tests.faults.pools.load import check_billed
from tests.faults.pools.world import World, asked_of_fake
from tests.gateway.agent.site import Host
from tests.gateway.backends.foreign.fake import fake_server, saying
from tests.gateway.model_folder import make_model_folder
from tests.installation.bucket import GuardedBucket, guarded_bucket
from tests.installation.gateway_process import GatewayProcess
from tests.installation.live_gateway import running_gateways
from tests.installation.processes import ChildProcess
from tests.installation.tenants import make_key, make_operator_key, make_tenant
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

ADDRESSES = ("127.0.0.2", "127.0.0.3")
NUM_ASKING = 4
"""The number of clients, each of which asks again as soon as it is answered."""

NUM_BETWEEN = 20
"""The number of answers to wait for between two steps."""

FILE = b"a tenant's file"
FILES_PER_S = 40
"""The files that all clients read in a second, fewer than a gateway lets one project read."""

OLD, NEW = "sk-the-former-key-0000", "sk-the-latter-key-1111"


class Machine:
    """A host with an agent that starts engines, and a gateway, which share the keys of one data folder."""

    def __init__(self, host: Host, gateway: GatewayProcess) -> None:
        self.host = host
        self.gateway = gateway
        self._agent: ChildProcess | None = None

    @property
    def id(self) -> str:
        return host_id(self.host.data_dir)

    @property
    def public_key(self) -> str:
        return host_keys(self.host.data_dir).public

    def start_agent(self) -> None:
        self._agent = self.host.agent()

    def change_keys(self) -> None:
        """Stop the gateway and the agent, delete the host's key, and start both again."""
        assert self._agent is not None
        assert self.gateway.terminate() == 0
        assert self._agent.terminate() == 0
        (link_folder(self.host.data_dir) / SECRET_NAME).unlink()
        self.start_agent()
        self.gateway.start()
        self.gateway.wait_ready()


@pytest.fixture
def machines(dsn: str, database: Database) -> Iterator[list[Machine]]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    made = []
    for address in ADDRESSES:
        host = Host(folder / address, dsn, database)
        host.variables["LORIKEET_LINK_ADDRESS"] = address
        model = str(folder / ADDRESSES[0] / "tiny")
        settings = Settings(
            data_dir=host.data_dir, model=model, model_name="tiny", lame_duck_seconds=1.0, drain_seconds=5.0
        )
        made.append(Machine(host, GatewayProcess(settings, dsn)))
    yield made
    for machine in made:
        machine.gateway.close()
        machine.host.close()
    shutil.rmtree(folder)


@asynccontextmanager
async def asking(ask: Callable[[int], Awaitable[str]]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run clients that ask repeatedly until the context is left. Give a function that waits for NUM_BETWEEN more
    answers.

    ask: gets the number of the request, and returns its outcome in words.

    Raises AssertionError: when a request is not answered.
    """
    outcomes: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def client(number: int) -> None:
        while not is_over.is_set():
            outcomes[await ask(number)] += 1

    async def more() -> None:
        wanted = outcomes["answered"] + NUM_BETWEEN

        async def came() -> bool:
            assert set(outcomes) <= {"answered"}, outcomes
            return outcomes["answered"] >= wanted

        await until(came, lambda: str(outcomes))

    async with asyncio.TaskGroup() as tasks:
        for number in range(NUM_ASKING):
            tasks.create_task(client(number))
        try:
            await more()
            yield more
            await more()
        finally:
            is_over.set()
    assert set(outcomes) == {"answered"}, outcomes


async def test_no_request_fails_while_the_keys_of_hosts_are_rotated(
    machines: list[Machine], dsn: str, database: Database
) -> None:
    first = machines[0].host
    await first.pool(first.model())
    for machine in machines:
        machine.start_agent()
    [row] = await first.ready()
    machines.sort(key=lambda machine: machine.id != row.host_id)  # that of the replica first
    for machine in machines:
        machine.gateway.start()
    for machine in machines:
        await asyncio.to_thread(machine.gateway.wait_ready)
    world = World(dsn, await make_key(dsn, "acme"), [machine.gateway for machine in machines])
    environ = {"LORIKEET_ADMIN_KEY": await make_operator_key(dsn)}

    async def rotate(machine: Machine, other: Machine) -> None:
        environ["LORIKEET_URL"] = other.gateway.url
        assert (await asyncio.to_thread(lorikeet, environ, "host", "drain", machine.id)).returncode == 0

        async def has_moved() -> bool:
            places = [(row.host_id, row.state) for row in await first.replicas()]
            return places == [(other.id, "ready")]

        await until(has_moved, other.host.log)
        former = machine.public_key
        await asyncio.to_thread(machine.change_keys)

        async def is_known() -> bool:
            async with database.acquire() as conn:
                keys = await list_keys(conn)
                [row] = [row for row in await list_hosts(conn) if row.id == machine.id]
            return former not in keys and machine.public_key in keys and row.is_alive

        await until(is_known, machine.host.log)
        assert (await asyncio.to_thread(lorikeet, environ, "host", "undrain", machine.id)).returncode == 0

    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:

        async def ask(number: int) -> str:
            asked = asked_of_fake("tiny", 0, [5, 6, 7, 8], 8, stream=number % 2 == 1)
            return await world.ask(http, asked, world.gateways[number // 2 % 2])

        async with asking(ask) as more:
            await rotate(machines[1], machines[0])
            await more()
            await rotate(machines[0], machines[1])  # whose engine proves the new key from now on
            await more()
            assert [row.public_key for row in await first.replicas()] == [machines[1].public_key]
    await check_billed(world)


async def test_no_request_fails_while_the_keys_of_another_server_are_rotated(dsn: str, tmp_path: Path) -> None:
    tenant = await make_tenant(dsn, "acme", "pirate", "1")
    environ = {"LORIKEET_ADMIN_KEY": await make_operator_key(dsn)}
    of_tenant = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": "theirs", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    context = running_gateways(dsn, make_model_folder(tmp_path / "model"), data_dir=tmp_path, num_gateways=2)
    installed = await asyncio.to_thread(context.__enter__)
    urls = [gateway.url for gateway in installed.gateways]
    environ["LORIKEET_URL"] = urls[0]

    async def run(*words: str) -> None:
        done = await asyncio.to_thread(lorikeet, environ, *words)
        assert done.returncode == 0, done.stderr

    try:
        async with fake_server() as server, httpx.AsyncClient(timeout=PATIENCE_S, headers=of_tenant) as http:
            server.answer = saying("Hello", " world", pause_s=0.05)
            settings = ("allow_private=true", "health_seconds=0.1", "own_keys=allowed")
            sets = [word for each in settings for word in ("--set", each)]
            await run("pool", "create", "theirs", "--engine", "openai", "--url", server.url, *sets)

            async def ask(number: int) -> str:
                reply = await http.post(f"{urls[number % 2]}/v1/chat/completions", json=body)
                is_whole = reply.status_code == 200 and "Hello world" in reply.text
                return "answered" if is_whole else f"{reply.status_code} {reply.text}"

            async def is_answered() -> bool:
                return [await ask(number) for number in range(2)] == ["answered"] * 2

            async def rotate(*command: str) -> None:
                """Set a key; then rotate it under load."""
                server.keys = {OLD, NEW}
                file = tmp_path / "key"
                file.write_text(OLD)
                await run(*command, "--from", str(file))
                await until(is_answered)
                async with asking(ask) as more:
                    await until(lambda: _is_sent(OLD))
                    file.write_text(NEW)
                    await run(*command, "--from", str(file))
                    await until(lambda: _is_sent(NEW))
                    server.keys = {NEW}
                    await more()

            async def _is_sent(key: str) -> bool:
                last = server.received[-2 * NUM_ASKING :]
                return all(each.headers.get("authorization") == f"Bearer {key}" for each in last)

            await until(is_answered)
            await rotate("pool", "key", "theirs")
            await rotate("provider-key", "set", "theirs", "--tenant", "acme")
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def test_no_request_fails_while_the_keys_of_a_bucket_are_rotated(open_folder: Path) -> None:
    with site_of(open_folder / "bucket") as site, guarded_bucket() as bucket:
        variables = bucket.make_key() | {"LORIKEET_FILE_STORE": "s3://bucket/files"}
        gateways = [OwnPort(site.settings, site.postgres.dsn, number, variables=variables) for number in range(2)]
        try:
            for gateway in gateways:
                gateway.start()
            for gateway in gateways:
                gateway.wait_ready()
            asyncio.run(_rotate_buckets_key(bucket, variables, gateways, site.key.secret))
        finally:
            for gateway in gateways:
                gateway.close()


async def _rotate_buckets_key(
    bucket: GuardedBucket, former: dict[str, str], gateways: list[OwnPort], secret: str
) -> None:
    """Replace gateways by those with a second key while files are read, and delete the first key."""
    balanced = list(gateways)  # where a proxy would send requests
    stored = list[str]()
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers, trust_env=False) as http:

        async def store(gateway: OwnPort) -> None:
            uploaded = {"file": ("a.txt", FILE)}
            made = await http.post(f"{gateway.url}/v1/files", files=uploaded, data={"purpose": "user_data"})
            assert made.status_code == httpx.codes.OK, made.text
            stored.append(made.json()["id"])

        async def ask(number: int) -> str:
            """Read a file that was stored lately, through a gateway that the balancer knows."""
            await asyncio.sleep(NUM_ASKING / FILES_PER_S)
            url = balanced[number % len(balanced)].url
            read = await http.get(f"{url}/v1/files/{stored[-1 - number % len(stored)]}/content")
            return "answered" if read.content == FILE else f"{read.status_code} {read.text}"

        for gateway in gateways:
            await store(gateway)
        async with asking(ask) as more:
            latter = bucket.make_key()
            for gateway in gateways:
                gateway.change(latter)
                balanced.remove(gateway)
                await asyncio.to_thread(gateway.restart)
                balanced.append(gateway)
                await store(gateway)
                await more()
            bucket.delete_key(former)
            assert not bucket.is_open_to(former)
            for gateway in gateways:
                await store(gateway)
            await more()
