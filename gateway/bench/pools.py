"""The cost of many pools and hosts for gateways that read their rows and find targets of requests, and for agents.

`python -m gateway.bench.pools --model-dir DIR`: a database with 1,000 pools and 10,000 replicas on 1,250 hosts, and no
engine. Prints the seconds of reading all rows, the microseconds of resolving model strings while changes come, and the
seconds of what each agent does each second, part by part.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.config import model_digest
from gateway.backends.engine.client import EngineBackend
from gateway.backends.engine.link import engine_context
from gateway.bench.streams import ForgetfulSink
from gateway.db.changes import Change
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.db.pools.planning import plan_pools, read_pools_and_hosts
from gateway.db.pools.pools import scale_pool
from gateway.db.pools.scaling import scale_pools
from gateway.db.pools.served import list_served
from gateway.domain.errors import ModelNotFound
from gateway.domain.pools.plan import plan
from gateway.domain.routing.bases import Bases
from gateway.domain.tenancy.principal import Principal
from gateway.pools.first_pool import make_pool
from gateway.pools.live import LivePools
from gateway.postgres.embedded import EmbeddedPostgres
from gateway.routing.resolve import Resolver

_HOSTS = """
    INSERT INTO hosts (id, name, generation, lease_until, memory_bytes)
    SELECT 'host_' || n, 'host ' || n, 1, now() + interval '1 day', 1::bigint << 40 FROM generate_series(0, $1 - 1) n
"""
_REPLICAS = """
    INSERT INTO replicas (id, pool_id, revision, state, host_id)
    SELECT 'replica_' || p.id || n, p.id, 1, 'ready', 'host_' || (row_number() OVER ()) % $2
    FROM pools p CROSS JOIN generate_series(1, $1) n
"""
_SIZES = "UPDATE pool_revisions SET num_bytes = 1::bigint << 33"
_NUMBERS = "UPDATE pools SET num_replicas = $1"
_BOUNDS = (
    "INSERT INTO pool_scaling (pool_id, min_replicas, max_replicas, down_after_s) SELECT id, 1, 20, 300 FROM pools"
)
NUM_LOOKS = 5
CHANGE_EVERY_S = 1.0


async def measure(
    dsn: str, model_dir: Path, *, num_pools: int, num_replicas: int, num_hosts: int, seconds: float
) -> dict[str, float]:
    """Return seconds of reading all rows, quantiles of resolving in microseconds, and seconds of an agent's round."""
    digest = model_digest(model_dir)
    async with await Database.connect(dsn) as database:
        async with database.transaction() as conn:
            for number in range(num_pools):
                await make_pool(conn, f"pool-{number}", model="m", folder=model_dir, base_digest=digest)
            await conn.execute(_HOSTS, num_hosts)
            await conn.execute(_REPLICAS, num_replicas // num_pools, num_hosts)
            await conn.execute(_NUMBERS, num_replicas // num_pools)
            await conn.execute(_SIZES)
            await conn.execute(_BOUNDS)
        look = await _round_s(database)
        bases, context = Bases(), engine_context()
        resolver = Resolver(database, bases, _no_key)
        pools = LivePools(
            database,
            bases,
            lambda address, model, key: EngineBackend(
                address, database_id="none", model=model, sink=ForgetfulSink(), context=context
            ),
            forget_routes=lambda: resolver.changed(None),
        )
        started_s = time.perf_counter()
        await pools.start()
        read_s = time.perf_counter() - started_s
        changing = asyncio.create_task(_keep_changing(database, pools))
        try:
            times_s = await _resolve(resolver, num_pools, seconds)
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            await pools.stop()
            await pools.disconnect()
            await asyncio.to_thread(context.term)
    times_s.sort()
    return {
        "pools": num_pools,
        "replicas": num_replicas,
        "read_s": round(read_s, 3),
        "resolved": len(times_s),
        "resolve_us_p50": round(times_s[len(times_s) // 2] * 1e6, 1),
        "resolve_us_p99": round(times_s[len(times_s) * 99 // 100] * 1e6, 1),
        "hosts": num_hosts,
        **look,
    }


async def _round_s(database: Database) -> dict[str, float]:
    """Measure each part of an agent's round several times, and return the least seconds of each, by its name.

    Parts: reading all pools, deciding their numbers and planning, while nothing is to be done; and a plan for a lost
    host, which is not carried out.
    """
    times_s: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        times_s.setdefault(name, []).append(time.perf_counter() - started_s)

    async with database.acquire() as conn:
        while await plan_pools(conn, "host_0", 1):
            await scale_pools(conn, "host_0", 1)  # until the first revision of each pool serves
        pid = int(await conn.fetchval("SELECT pg_backend_pid()"))
        began_ns = _processor_ns(pid)
        for _ in range(NUM_LOOKS):
            with timed("look_read_s"):
                await list_served(conn)
        read_ns = _processor_ns(pid) - began_ns
        for _ in range(NUM_LOOKS):
            with timed("look_scale_s"):
                await scale_pools(conn, "host_0", 1)
            with timed("look_plan_s"):
                await plan_pools(conn, "host_0", 1)
        world, hosts = await read_pools_and_hosts(conn)
    for _ in range(NUM_LOOKS):
        with timed("plan_alone_s"):
            plan(world, hosts)
        lost = [msgspec.structs.replace(hosts[0], is_alive=False, away_s=60.0), *hosts[1:]]
        with timed("plan_of_a_lost_host_s"):
            plan(world, lost)
    least = {name: round(min(values), 3) for name, values in times_s.items()}
    return least | {"read_in_postgres_s": round(read_ns / NUM_LOOKS / 1e9, 4)}


def _processor_ns(pid: int) -> int:
    """Return the nanoseconds of processor time of a process of this machine."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


async def _keep_changing(database: Database, pools: LivePools) -> None:
    """Change a pool once a second, as agents do whose replicas come and go."""
    async with database.acquire() as conn:
        served = await list_served(conn)
    rng = random.Random(0)  # noqa: S311 - no secret
    while True:
        await asyncio.sleep(CHANGE_EVERY_S)
        pool_id = rng.choice(served).row.id
        async with database.acquire() as conn:
            await scale_pool(conn, pool_id, rng.randrange(2, 9))
        pools.changed(Change(0, "pools", pool_id, None))


async def _no_key(project_id: str) -> bytes:
    """Raise an error: no experiment runs here, so no project's secret is needed."""
    raise AssertionError("no experiment runs")


async def _resolve(resolver: Resolver, num_pools: int, seconds: float) -> list[float]:
    """Resolve pools and names that no pool has, a thousand times a second; return the seconds that each took."""
    principal = Principal("org", "proj", "key", frozenset({"inference"}))
    rng, times_s = random.Random(1), []  # noqa: S311 - no secret
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        model = f"pool-{rng.randrange(num_pools)}" if rng.random() < 0.9 else f"none-{rng.randrange(9)}:x"
        started_s = time.perf_counter()
        with contextlib.suppress(ModelNotFound):
            await resolver.resolve(principal, model)
        times_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(0.001)
    return times_s


def main() -> int:
    """Print the cost of many pools and hosts; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.pools", description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of a prepared model")
    parser.add_argument("--pools", type=int, default=1_000)
    parser.add_argument("--replicas", type=int, default=10_000, help="replicas of all pools together")
    parser.add_argument("--hosts", type=int, default=1_250)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "postgres")
        dsn = server.start()
        try:
            asyncio.run(migrate(dsn))
            found = asyncio.run(
                measure(
                    dsn,
                    args.model_dir,
                    num_pools=args.pools,
                    num_replicas=args.replicas,
                    num_hosts=args.hosts,
                    seconds=args.seconds,
                )
            )
        finally:
            server.stop()
    sys.stdout.write(json.dumps(found) + "\n" if args.json else "".join(f"{k:>16}  {v}\n" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
