"""Two hosts with engines and a third one with a gateway, each with keys and a folder of its own, over one database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.curve import Peer
from gateway.db.pool import Database
from gateway.db.pools.hosts import HostRow, announce_key, drain_host, list_hosts, remove_host
from gateway.support.host import host_id, host_keys
from tests.gateway.agent.site import Host, calling
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture
def hosts(dsn: str, database: Database) -> Iterator[list[Host]]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    made = [Host(folder / address, dsn, database) for address in ADDRESSES]
    for host, address in zip(made, ADDRESSES, strict=True):
        host.variables["LORIKEET_LINK_ADDRESS"] = address
    yield made
    for host in made:
        host.close()
    shutil.rmtree(folder)


async def rows_of(database: Database) -> dict[str, HostRow]:
    async with database.acquire() as conn:
        return {each.id: each for each in await list_hosts(conn)}


async def test_replicas_on_two_hosts_serve_a_third_one_and_go_from_a_host_that_is_drained(
    hosts: list[Host], database: Database, tmp_path: Path
) -> None:
    first, second = hosts
    first.agent()
    second.agent()

    async def both_alive() -> bool:
        return [each.is_alive for each in (await rows_of(database)).values()] == [True, True]

    await until(both_alive, second.log)
    await first.pool(first.model(), num_replicas=2)
    rows = await first.ready(2)
    ids = {host_id(host.data_dir): host for host in hosts}
    places = {row.address.split(":")[1].strip("/"): row.host_id for row in rows if row.address}
    assert places == {address: host_id(host.data_dir) for address, host in zip(ADDRESSES, hosts, strict=True)}
    assert {row.public_key for row in rows} == {host_keys(host.data_dir).public for host in hosts}

    keys = host_keys(tmp_path)
    async with database.acquire() as conn:
        await announce_key(conn, host_id(tmp_path), "third", keys.public)
    for row in rows:
        assert row.public_key is not None
        async with calling(first, row, Peer(keys, row.public_key)) as conversation:
            final = await conversation.call(3)
            assert final is not None and final.usage.completion_tokens == 3

    async with database.acquire() as conn:
        await drain_host(conn, host_id(first.data_dir), is_drained=True)

    async def all_moved() -> bool:
        found = await first.replicas()
        return {(row.host_id, row.state) for row in found} == {(host_id(second.data_dir), "ready")}

    await until(all_moved, second.log)
    assert first.pids() == [] and len(second.pids()) == 2
    assert {row.is_drained for row in (await rows_of(database)).values() if ids.get(row.id) is first} == {True}


async def test_the_agent_of_a_removed_host_ends_and_says_why(hosts: list[Host], database: Database) -> None:
    first, _ = hosts
    await first.pool(first.model())
    agent = first.agent()
    await first.ready()
    async with database.acquire() as conn:
        await remove_host(conn, host_id(first.data_dir))
    assert agent.popen is not None
    assert agent.popen.wait(PATIENCE_S) != 0
    assert "this host was removed" in first.log()
    again = first.agent()
    assert again.popen is not None and again.popen.wait(PATIENCE_S) != 0
    assert await rows_of(database) == {}
