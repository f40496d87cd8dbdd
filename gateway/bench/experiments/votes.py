"""`python -m gateway.bench.experiments.votes`: how many votes one gateway keeps in a second, in batches over HTTP.

Starts a database, the fake engine and one gateway of its own. Several projects vote about requests of an experiment,
each vote under an id of its client, each batch in one body; 200 means that the batch is on disk. The gateway counts the
votes into the experiments' sums meanwhile, as it always does. Prints votes a second, the latency of a batch, and the
processor time of a vote. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.experiments.tables import DEFINITION
from gateway.bench.http import Connection, connect, post
from gateway.bench.installation import Installation, running_installation
from gateway.bench.load import quantile_ms
from gateway.db.experiments.events import count_waiting
from gateway.db.pool import Database
from gateway.domain.experiments.allocation import first_split
from gateway.domain.experiments.assignment import NUM_BUCKETS

NUM_REQUESTS = 20_000
"""Requests of each project; votes are about each of them in turn."""
ENOUGH_PER_S = 1_000

_PROJECT = "SELECT project_id FROM api_keys WHERE sha256 = $1"
_LAYER = "INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, 'default', $2)"
_METRIC = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind) VALUES ($1, 'paid', 'number', 'increase', 'mean')
"""
_EXPERIMENT = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, seed, slots, tables, started_at)
    VALUES ($1, $2, 'bench', 'bench', 'running', $3, 'default', $4, $5, $6, now() - interval '1 day')
"""
_REQUESTS = """
    INSERT INTO experiment_requests (
        request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at)
    SELECT 'req_' || $2 || '_' || n, $1, $2, decode(md5($2 || n / 4), 'hex'), 1, n / 4 % 3, true, now()
    FROM generate_series(0, $3::integer - 1) AS n
"""
_NUM_VOTES = """
    SELECT count(*) FROM feedback WHERE project_id IN (SELECT project_id FROM experiments WHERE id = ANY ($1::text[]))
"""


async def fill(dsn: str, keys: Sequence[str]) -> list[str]:
    """Give each project a running experiment with requests, four of each unit; return the experiments' ids."""
    split = first_split(b"s" * 32, b"l" * 32, range(NUM_BUCKETS), (1, 1, 1))
    text, made = msgspec.json.encode(DEFINITION).decode(), []
    async with await Database.connect(dsn) as database, database.acquire() as conn:
        for number, key in enumerate(keys):
            project_id = await conn.fetchval(_PROJECT, hashlib.sha256(key.encode()).digest())
            experiment_id = f"exp{number}"
            await conn.execute(_LAYER, project_id, split.layer_seed)
            await conn.execute(_METRIC, project_id)
            values = split.seed, split.slots, list(split.tables)
            await conn.execute(_EXPERIMENT, experiment_id, project_id, text, *values)
            await conn.execute(_REQUESTS, project_id, experiment_id, NUM_REQUESTS)
            made.append(experiment_id)
    return made


def batches(key: str, experiment_id: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of requests with `size` votes each. Later votes about a request replace the earlier ones."""
    number = 0
    while True:
        votes = [
            {
                "request_id": f"req_{experiment_id}_{each % NUM_REQUESTS}",
                "metric": "paid",
                "value": each % 100,
                "id": f"vote-{each}",
            }
            for each in range(number, number + size)
        ]
        number += size
        yield post("/v1/feedback", key, json.dumps({"data": votes}).encode())


async def send(
    connection: Connection, made: Iterator[bytes], until_s: float, took_s: list[float], statuses: Counter[int]
) -> None:
    """Send batches one after the other until a time, and add the latency and status of each to the lists."""
    while time.perf_counter() < until_s:
        request, began_s = next(made), time.perf_counter()
        statuses[await connection.ask(request)] += 1
        took_s.append(time.perf_counter() - began_s)


async def measure(args: argparse.Namespace, installation: Installation) -> dict[str, Any]:
    """Return one row of figures."""
    ids = await fill(installation.dsn, installation.keys)
    making = [batches(key, each, args.batch) for key, each in zip(installation.keys, ids, strict=True)]
    opened = [await connect("127.0.0.1", installation.ports[0]) for _ in range(args.senders)]
    took_s, statuses = list[float](), Counter[int]()
    cpu_s, began_s = installation.cpu_s(), time.perf_counter()
    until_s = began_s + args.seconds
    await asyncio.gather(
        *(
            send(connection, making[number % len(making)], until_s, took_s, statuses)
            for number, connection in enumerate(opened)
        )
    )
    elapsed_s, used_s = time.perf_counter() - began_s, installation.cpu_s() - cpu_s
    for connection in opened:
        connection.close()
    async with await Database.connect(installation.dsn) as database, database.acquire() as conn:
        left, num_rows = await count_waiting(conn), await conn.fetchval(_NUM_VOTES, ids)
    num_votes = statuses[200] * args.batch
    return {
        "batch": args.batch,
        "senders": args.senders,
        "votes": num_votes,
        "rows": num_rows,
        "votes_per_s": num_votes / elapsed_s,
        "batch_ms_p50": quantile_ms(took_s, 0.5),
        "batch_ms_p99": quantile_ms(took_s, 0.99),
        "cpu_us_per_vote": used_s / num_votes * 1e6 if num_votes else None,
        "events_waiting": left.num,
        "statuses": {str(status): count for status, count in statuses.items()},
    }


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.experiments.votes", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a model's folder, for its tokenizer")
    add("--batch", type=int, default=1_000, help="votes in one body, 1,000 at most")
    add("--senders", type=int, default=4, help="batches that are under way at once")
    add("--projects", type=int, default=4, help="projects that vote; each has a pace of its own")
    add("--seconds", type=float, default=10.0)
    add("--json", action="store_true", help="print one line of JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where every batch was stored, at 1,000 votes a second or more, else 1.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = arguments().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with (
            running_installation(
                folder, args.model_dir.absolute(), num_gateways=1, num_tenants=args.projects, with_limits=False
            ) as installation,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            row = runner.run(measure(args, installation))
    if args.json:
        sys.stdout.write(f"{json.dumps(row)}\n")
    else:
        for what, value in row.items():
            sys.stdout.write(f"{what:16} {f'{value:,.1f}' if isinstance(value, float) else value}\n")
    return int(set(row["statuses"]) != {"200"} or row["votes_per_s"] < ENOUGH_PER_S)


if __name__ == "__main__":
    sys.exit(main())
