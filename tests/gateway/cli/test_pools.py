"""`lorikeet pool`, `replica` and `host`: pools by name, readable tables, and --wait that reports the end."""

from __future__ import annotations

import argparse
import asyncio
import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.cli.client import AdminClient
from gateway.cli.errors import CommandFailed
from gateway.cli.pools.tables import print_servers
from gateway.cli.pools.waiting import report_change
from gateway.db.pool import Database
from gateway.db.pools import pools, replicas, revisions
from gateway.db.pools.host_failures import note_failure
from gateway.db.pools.served import ServedPool, list_served, switch_revision
from gateway.domain.pools.capacity import Node
from tests.gateway.cli.conftest import Cli
from tests.gateway.pools.acting_agent import Agent
from tests.patience import PATIENCE_S

HERE = Path.cwd()
MODEL = ("--model", "Qwen/Qwen3-0.6B")


@pytest.fixture
async def agent(database: Database) -> Agent:
    agent = Agent(database)
    await agent.claim()
    return agent


async def start_replicas(agent: Agent, pool_id: str, num: int = 1, revision: int = 1) -> list[str]:
    await agent.prepare(pool_id, revision)
    return [await agent.start(pool_id, revision) for _ in range(num)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def while_waiting(
    database: Database,
    running: Awaitable[Any],
    is_due: Callable[[ServedPool], bool],
    act: Callable[[str], Awaitable[Any]],
) -> Any:
    """Await a command, and call `act` with the first pool's id once `is_due` is true of the pool; return the result."""
    command = asyncio.ensure_future(running)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with database.acquire() as conn:
                found = await list_served(conn)
            if found and is_due(found[0]):
                break
            await asyncio.sleep(0.02)
        await act(found[0].row.id)
        return await command


async def test_a_pool_is_created_shown_scaled_drained_and_deleted(lorikeet: Cli, agent: Agent) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL, "--replicas", "2", "--set", "max_model_len=8192")
    assert (made["name"], made["settings"], made["num_replicas"]) == ("qwen", {"max_model_len": "8192"}, 2)
    first, second = await start_replicas(agent, made["id"], 2)
    assert await lorikeet.json("pool", "show", "qwen") == await lorikeet.json("pool", "show", made["id"])
    code, out, _ = await lorikeet("pool", "list")
    header, row = out.splitlines()
    assert (code, header.split()[:3], row.split()[:3]) == (0, ["NAME", "STATE", "READY"], ["qwen", "ready", "2/2"])
    code, out, _ = await lorikeet("pool", "show", "qwen")
    facts = dict(line.split(maxsplit=1) for line in out.split("\n\n")[0].splitlines())
    assert (facts["state"], facts["settings"]) == ("ready", "max_model_len=8192")
    assert facts["memory"] == "2.0 GiB a replica, by the estimate"
    assert first in out and "gpu-1" in out
    assert (await lorikeet("pool", "scale", "qwen", "1"))[:2] == (0, "pool qwen is to run 1 replica\n")
    assert (await lorikeet("pool", "delete", "qwen"))[0] == 1
    assert (await lorikeet("pool", "drain", "qwen"))[0] == 0
    for replica_id in (first, second):
        await agent.stop(replica_id)
    assert await lorikeet.json("pool", "delete", "qwen") == {"id": made["id"], "name": "qwen", "removed": True}
    code, _, err = await lorikeet("pool", "show", "qwen")
    assert (code, err) == (1, "lorikeet: there is no pool named 'qwen'; `lorikeet pool list` lists all pools\n")


async def test_a_pool_whose_only_revision_failed_is_not_shown_as_on_its_way(lorikeet: Cli, database: Database) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    async with database.transaction() as conn:
        await revisions.set_revision_state(conn, made["id"], 1, "failed", "It does not fit.")
    _, out, _ = await lorikeet("pool", "show", "qwen")
    facts = dict(line.split(maxsplit=1) for line in out.split("\n\n")[0].splitlines())
    assert (facts["state"], facts["revision"]) == ("failed: It does not fit.", "1 failed, none serves")


async def test_settings_and_access_are_changed_one_by_one(lorikeet: Cli, agent: Agent) -> None:
    tenant = await lorikeet.json("tenant", "create", "initech")
    made = await lorikeet.json("pool", "create", "qwen", *MODEL, "--tenant", "initech", "--set", "dtype=float32")
    assert [grant["project_id"] for grant in made["grants"]] == [tenant["id"]]
    _, out, _ = await lorikeet("pool", "show", "qwen")
    assert "access    listed initech" in out
    await start_replicas(agent, made["id"])
    changed = await lorikeet.json("pool", "update", "qwen", "--set", "max_num_seqs=8", "--unset", "dtype")
    assert (changed["wanted_revision"], changed["settings"]) == (2, {"max_num_seqs": "8"})
    assert (await lorikeet("pool", "cancel", "qwen"))[:2] == (0, "pool qwen stays at revision 1\n")
    opened = await lorikeet.json("pool", "update", "qwen", "--all-tenants")
    assert (opened["access"], opened["wanted_revision"]) == ("all", 1)
    for words, code in [
        (("--set", "max_num_seqs"), 2),
        (("--unset", "max_num_seqs"), 2),
        ((), 2),
        (("--set", "bananas=1"), 1),
        (("--tenant", "nobody"), 1),
        (("--model", "qwen"), 1),
    ]:
        assert (await lorikeet("pool", "update", "qwen", *words))[0] == code, words
    code, _, err = await lorikeet("pool", "update", "qwen", "--set", "bananas=1")
    assert "Invalid value for 'settings.bananas': it is no setting of a pool" in err


async def test_a_relative_path_of_a_model_is_sent_as_an_absolute_one(lorikeet: Cli) -> None:
    made = await lorikeet.json("pool", "create", "mine", "--model", "./models/mine")
    assert made["model"] == str(HERE / "models/mine")


async def test_waiting_tells_how_far_it_is_and_ends_when_the_pool_is_ready(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    code, out, err = await while_waiting(
        database,
        lorikeet("pool", "create", "qwen", *MODEL, "--wait"),
        lambda pool: pool.row.name == "qwen",
        lambda pool_id: start_replicas(agent, pool_id),
    )
    assert (code, out) == (0, "pool qwen is ready: 1 replica of revision 1\n")
    said = err.splitlines()
    assert (said[0][:23], said[-1]) == ("pool qwen is created: p", "qwen: ready")
    assert "qwen: starting: Revision 1 is being prepared." in said


async def test_waiting_tells_that_a_revision_failed_and_that_the_other_goes_on(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    await start_replicas(agent, made["id"])

    async def go_back(pool_id: str) -> None:
        async with database.transaction() as conn:
            await revisions.set_revision_state(conn, pool_id, 2, "failed", "It does not fit.")
            await pools.want_revision(conn, pool_id, 1)

    code, out, err = await while_waiting(
        database,
        lorikeet("pool", "update", "qwen", "--model", "demo", "--wait"),
        lambda pool: pool.row.wanted_revision == 2,
        go_back,
    )
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == ("lorikeet: revision 2 of pool qwen failed: It does not fit; revision 1 goes on")


async def test_waiting_tells_how_replicas_are_replaced(lorikeet: Cli, agent: Agent, database: Database) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    (first,) = await start_replicas(agent, made["id"])

    async def replace(pool_id: str) -> None:
        await agent.prepare(pool_id, 2)
        replica_id = await agent.begin(pool_id, 2)
        await until(lambda: "side by side" in lorikeet.errors_so_far())
        await agent.move(replica_id, "ready")
        async with database.acquire() as conn:
            await switch_revision(conn, pool_id, 2)
            await replicas.drain_replicas(conn, [first], "another revision serves")
        await agent.stop(first)

    code, out, _ = await while_waiting(
        database,
        lorikeet("pool", "update", "qwen", "--model", "demo", "--wait"),
        lambda pool: pool.row.wanted_revision == 2,
        replace,
    )
    assert (code, out) == (0, "pool qwen is ready: 1 replica of revision 2\n")
    assert "qwen: replicas are replaced side by side" in lorikeet.errors_so_far()


async def test_waiting_for_a_restart_ends_once_another_replica_serves_in_its_place(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    (first,) = await start_replicas(agent, made["id"])
    code, out, _ = await lorikeet("replica", "restart", first, "--wait", "--timeout", "0")
    assert (code, out) == (4, f"pool qwen is ready: replica {first} is not replaced yet\n")

    async def replace(pool_id: str) -> None:
        await until(lambda: f"replica {first} of qwen is going to be replaced" in lorikeet.errors_so_far())
        await agent.start(pool_id, 1)
        async with database.acquire() as conn:
            await replicas.drain_replicas(conn, [first], "another one serves")
        await agent.stop(first)

    command = lorikeet("replica", "restart", first, "--wait")
    code, out, _ = await while_waiting(database, command, lambda pool: True, replace)
    assert (code, out) == (0, "pool qwen is ready: 1 replica of revision 1\n")
    assert [each["id"] for each in await lorikeet.json("replica", "list")] != [first]


async def test_waiting_gives_up_with_another_exit_code_when_its_time_is_over(lorikeet: Cli, agent: Agent) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    await start_replicas(agent, made["id"])
    code, out, _ = await lorikeet("pool", "scale", "qwen", "2", "--wait", "--timeout", "0")
    assert (code, out) == (4, "pool qwen is scaling: 1 of 2 replicas is ready.\n")


def test_an_interrupted_wait_says_that_the_change_goes_on() -> None:
    class InterruptingServer:
        """A server that interrupts the process, as Ctrl-C does, at its first answer."""

        def get(self, path: str) -> dict[str, Any]:
            raise KeyboardInterrupt

    pool = {"id": "pool_x", "name": "qwen", "state": "starting", "why": "", "revision": None, "wanted_revision": 1}
    pool |= {"rollout": None}
    arguments = argparse.Namespace(wait=True, json=True, timeout=60)
    with pytest.raises(
        CommandFailed, match="the change of pool qwen goes on; `lorikeet pool show qwen` tells how far"
    ) as end:
        report_change(
            cast("AdminClient", InterruptingServer()), arguments, pool | {"revisions": []}, "pool qwen is created"
        )
    assert end.value.exit_code == 130


async def test_replicas_and_hosts_are_listed_drained_and_restarted(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL, "--replicas", "2")
    other = await lorikeet.json("pool", "create", "other", *MODEL)
    first, second = await start_replicas(agent, made["id"], 2)
    async with database.acquire() as conn:
        await replicas.add_running_replica(conn, other["id"], 1, "tcp://engine:5555")
    assert len(await lorikeet.json("replica", "list")) == 3
    assert [each["id"] for each in await lorikeet.json("replica", "list", "--pool", "qwen")] == [first, second]
    code, out, _ = await lorikeet("replica", "restart", first)
    assert (code, out) == (0, f"replica {first} of qwen is going to be replaced\n")
    assert (await lorikeet("replica", "drain", second))[:2] == (0, f"replica {second} of qwen is draining\n")
    code, out, _ = await lorikeet("replica", "list")
    assert (code, "ready (to be replaced)" in out, "elsewhere" in out) == (0, True, True)
    code, out, _ = await lorikeet("host", "list")
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["HOST", "STATE", "PROCESSORS"])
    assert "gpu-1  alive  8           4.0 GiB of 64.0 GiB" in out
    assert (await lorikeet.json("host", "list"))[0]["num_replicas"] == 2
    code, _, err = await lorikeet("replica", "drain", "replica_none")
    assert (code, err) == (1, "lorikeet: There is no replica with the id 'replica_none'.\n")


async def test_a_cluster_is_shown_with_its_nodes(lorikeet: Cli, database: Database) -> None:
    cluster = Agent(database, "host_9", "cluster")
    await cluster.claim(placement="ray")
    west = Node("10.0.0.7", "rack-7", 4, 8 << 30, 1, {"zone": "west", "disk": "ssd"})
    await cluster.tell_nodes(west, Node("10.0.0.8", "rack-8", 2, 4 << 30, 0))
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    await cluster.prepare(made["id"])
    async with database.acquire() as conn:
        replica = await replicas.create_replica(conn, made["id"], 1, host_id="host_9")
    await cluster.ready(replica.id, "tcp://10.0.0.7:7400")
    _, out, _ = await lorikeet("host", "show", "cluster")
    assert "alive, Ray cluster  6           2.0 GiB of 12.0 GiB" in out
    assert [line.split() for line in out.splitlines() if "rack-" in line] == [
        ["rack-7", "10.0.0.7", "4", "8.0", "GiB", "1", "1", "disk=ssd", "zone=west"],
        ["rack-8", "10.0.0.8", "2", "4.0", "GiB", "0", "0", "-"],
    ]
    await cluster.claim(placement="ray", force=True)
    former = Agent(database, "host_9", "cluster")
    former.generation = 1
    await former.tell_nodes()
    assert len((await lorikeet.json("host", "show", "cluster"))["nodes"]) == 2, "another agent has the host"


async def test_unfit_adapters_are_given_up_only_with_drop_adapters(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    await start_replicas(agent, made["id"])
    await lorikeet.json("pool", "update", "qwen", "--model", "demo")
    await lorikeet.json("pool", "update", "qwen", "--model", "demo-random", "--drop-adapters")
    async with database.acquire() as conn:
        rows = await revisions.list_revisions(conn, made["id"])
    assert [each.allow_unfit_adapters for each in rows] == [True, False, False]


async def test_servers_of_another_maker_change_drain_and_come_back(lorikeet: Cli) -> None:
    first, second = "http://192.0.2.1:8000", "http://192.0.2.2:8000"
    made = await lorikeet.json("pool", "create", "theirs", "--engine", "openai", "--url", "http://198.51.100.7:8000",
                               "--set", "allow_private=true")  # fmt: skip
    assert (made["num_ready"], made["num_wanted"]) == (0, 1)
    code, _, error = await lorikeet("pool", "update", "theirs", "--url", first, "--set", "separate_caches=true")
    assert (code, "tenants share the prompt cache of servers of 'openai'" in error) == (1, True)
    code, out, _ = await lorikeet("pool", "update", "theirs", "--url", first, "--url", second)
    assert (code, out) == (0, "pool theirs serves revision 2\n")
    code, out, _ = await lorikeet("pool", "update", "theirs", "--url", first, "--url", second)
    assert (code, out) == (0, "pool theirs is as wanted already\n")
    code, out, _ = await lorikeet("pool", "list")
    assert "0/2" in out.splitlines()[1]
    code, out, _ = await lorikeet("pool", "drain", "theirs")
    again = f"lorikeet pool update theirs --url {first} --url {second}"
    assert (code, again in out) == (0, True)
    assert (await lorikeet(*again.split()[1:]))[:2] == (0, "pool theirs serves revision 3\n")


async def test_adapters_of_servers_that_take_them_at_their_start_are_shown_before_they_are_loaded(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    await agent.claim(0, "llamacpp")
    made = await lorikeet.json("pool", "create", "llama", "--engine", "llamacpp", "--model", "demo")
    async with database.acquire() as conn:
        await agent.prepare(made["id"])
        await conn.execute("UPDATE pool_revisions SET adapters = $1", ["a" * 64])
    await agent.start(made["id"])
    code, out, _ = await lorikeet("pool", "adapters", "llama")
    assert code == 0
    assert "With --load 1 replica is started anew beside the present ones, and no request is refused." in out
    assert (await lorikeet.json("pool", "adapters", "llama"))["num_removed"] == 1
    code, out, _ = await lorikeet("pool", "adapters", "llama", "--load")
    assert (code, "changes to revision 2" in out) == (0, True)
    code, out, _ = await lorikeet("host", "list")
    assert "llamacpp" in out


async def test_a_tenants_own_key_is_set_listed_and_removed(lorikeet: Cli, tmp_path: Path) -> None:
    await lorikeet.json("tenant", "create", "acme")
    opened = ("--set", "own_keys=allowed")
    await lorikeet.json("pool", "create", "theirs", "--engine", "openai", "--url", "http://93.184.216.34:1", *opened)
    file = tmp_path / "key.txt"
    file.write_text("sk-0123456789abcdef-AAAA\n")
    kept = ("provider-key", "set", "theirs", "--from", str(file), "--tenant", "acme")
    assert await lorikeet(*kept) == (0, "requests of acme to theirs are sent with its own key ending in AAAA\n", "")
    (listed,) = await lorikeet.json("provider-key", "list", "--tenant", "acme")
    assert (listed["model"], listed["hint"]) == ("theirs", "AAAA")
    code, out, _ = await lorikeet("provider-key", "list", "--tenant", "acme")
    assert (code, out.split()[:2]) == (0, ["MODEL", "ENDS"])
    gone = ("provider-key", "remove", "theirs", "--tenant", "acme")
    assert await lorikeet(*gone) == (0, "the key of acme for theirs is forgotten\n", "")
    assert await lorikeet(*gone) == (1, "", "lorikeet: acme has no key of its own for theirs\n")


def test_the_servers_of_a_pool_are_shown_with_what_they_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"version": "0.32.0", "is_tried_version": True, "has_adapters": True, "separates_caches": True}
    other = {"version": None, "is_tried_version": False, "has_adapters": True, "separates_caches": False}
    servers = [known | {"breaker": "closed"}, other | {"breaker": "open"}, None]
    print_servers([{"id": f"replica_{number}", "server": server} for number, server in enumerate(servers)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split()[0] for line in lines] == ["REPLICA", "replica_0", "replica_1"], "and no engine of our own"
    for words in ("0.32.0", "its own protocol", "yes", "one for each tenant", "closed"):
        assert words in lines[1]
    for words in ("it says none", "a generic protocol", "each once a probe has shown it", "shared by tenants", "open"):
        assert words in lines[2]


async def test_the_number_of_replicas_follows_the_load_within_bounds_that_a_command_sets(
    lorikeet: Cli, agent: Agent
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL)
    await start_replicas(agent, made["id"])
    code, _, err = await lorikeet("pool", "autoscale", "qwen", "--min", "0")
    assert code != 0 and "--max is missing" in err
    code, out, _ = await lorikeet("pool", "autoscale", "qwen", "--max", "4")
    assert (code, out) == (0, "pool qwen: 1 to 4 replicas by the load, one less after 300 s\n")
    assert (await lorikeet("pool", "autoscale", "qwen", "--min", "0", "--down-after", "60"))[0] == 0
    _, out, _ = await lorikeet("pool", "show", "qwen")
    facts = dict(line.split(maxsplit=1) for line in out.split("\n\n")[0].splitlines())
    assert facts["scaling"] == "0 to 4 replicas by the load, one less after 60 s"
    assert facts["outlook"] == "No gateway tells the load of the pool."
    _, out, _ = await lorikeet("pool", "autoscale", "qwen", "--off")
    assert out == "pool qwen: 1 replica, whatever the load is\n"
    assert (await lorikeet("pool", "autoscale", "qwen", "--off", "--max", "3"))[0] != 0
    assert (await lorikeet("pool", "scale", "qwen", "3"))[0] == 0
    [change] = await lorikeet.json("pool", "scalings", "qwen")
    assert (change["before"], change["after"], change["by"]) == (1, 3, "operator")
    assert "operator" in (await lorikeet("pool", "scalings", "qwen"))[1]


async def test_a_pool_asks_for_labels_of_hosts_and_a_host_tells_what_it_could_not_prepare(
    lorikeet: Cli, agent: Agent, database: Database
) -> None:
    made = await lorikeet.json("pool", "create", "qwen", *MODEL, "--on", "zone=west")
    assert (made["placement"], made["exclusion"]) == ({"zone": "west"}, {})
    code, out, _ = await lorikeet(
        "pool", "place", "qwen", "zone=east", "disk=ssd", "--not", "rack=a", "--not", "rack=b"
    )
    assert (code, out) == (0, "pool qwen runs on hosts: disk=ssd zone=east not rack=a not rack=b\n")
    _, out, _ = await lorikeet("pool", "show", "qwen")
    assert "disk=ssd zone=east not rack=a not rack=b" in out
    assert (await lorikeet("pool", "place", "qwen"))[1] == "pool qwen runs on hosts: any\n"
    other = await lorikeet.json("pool", "create", "other", *MODEL, "--not", "disk=hdd")
    assert other["exclusion"] == {"disk": ["hdd"]}
    async with database.acquire() as conn:
        await note_failure(conn, agent.host_id, made["id"], 1, "no such folder", datetime.timedelta(minutes=1))
    _, out, _ = await lorikeet("host", "show", agent.host_id)
    assert f"cannot prepare revision 1 of {made['id']}" in out and "no such folder" in out
