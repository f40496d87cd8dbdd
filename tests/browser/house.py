"""The gateway that the browser tests look at, over a real database and the fake engine, with tenants, people and usage.

python -m tests.browser.house serves one to look at, and prints how to sign in.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from gateway.db.ledger.rollups import roll_up
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.db.pools import hosts
from gateway.db.pools.scaling_rows import set_scaling
from gateway.domain.pools.scaling import Bounds
from gateway.postgres.embedded import EmbeddedPostgres
from tests.browser import experiment
from tests.gateway.bases import put_adapter
from tests.gateway.live import BASE, FakeEngine, LiveGateway, make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.gateway.pools.acting_agent import Agent
from tests.installation.live_gateway import running_gateways
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

PASSWORD = "correct horse battery staple"
OWNER, ADMIN, BILLING, VIEWER, MEMBER = (
    "olivia@lorikeet.test",
    "adam@lorikeet.test",
    "bea@lorikeet.test",
    "victor@lorikeet.test",
    "mia@acme.test",
)
ROLES = {OWNER: "owner", ADMIN: "admin", BILLING: "billing", VIEWER: "viewer", MEMBER: None}
ADAPTERS = {
    "acme": ("support-bot", "pirate"),
    "globex": ("poet", "sql-writer"),
    "initech": ("tps-reports",),
    "umbrella": ("clinic-notes",),
    "hooli": (),
}
ROUTE: dict[str, Any] = {
    "root": {
        "conditional": {
            "cases": [{"when": {"metadata": {"plan": "paid"}}, "node": {"hedge": {"node": {"target": BASE}}}}],
            "otherwise": {"fallback": {"nodes": [{"target": BASE}, {"target": BASE}], "first_token_ms": 3000}},
        }
    }
}
SOURCES = "https://adapters.example/"
HOURS_OF_HISTORY = 48
DAYS_OF_OLD_USAGE = 62
"""The age in days of the oldest usage: enough that its month can be closed by now."""

_HISTORY = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at, period,
        price_version, input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT 'req_' || md5($2 || $3 || n) || CASE $10::text WHEN 'shadow' THEN '_shadow' ELSE '' END, 0, 0,
           'usage', $1, $2, $4, '/v1/chat/completions', $3,
           $5, CASE WHEN $5::text IS NULL THEN NULL ELSE 1 END, NULL,
           CASE WHEN $5::text IS NULL THEN 'none' ELSE 'default' END, $10, n % 3 > 0,
           180 + (n * 37) % 900, (n * 13) % 160, 40 + (n * 29) % 380, 0,
           CASE WHEN n % 41 = 0 THEN 'error' WHEN n % 43 = 0 THEN 'refused' WHEN n % 29 = 0 THEN 'abort'
                WHEN n % 7 = 0 THEN 'length' ELSE 'stop' END,
           (n * 7) % 40, 20 + n % 30, 500 + (n * 31) % 900, 45 + (n * 17) % 210 + (n % 23 = 0)::int * 800,
           700 + (n * 31) % 900, 0, x.at, x.at + interval '1 second', date_trunc('month', x.at AT TIME ZONE 'UTC'),
           $9::integer, p.factor * (180 + (n * 37) % 900 - (n * 13) % 160) * 200, p.factor * ((n * 13) % 160) * 200,
           p.factor * (40 + (n * 29) % 380) * 800,
           p.factor * ((180 + (n * 37) % 900) * 200 + (40 + (n * 29) % 380) * 800), 0
    FROM generate_series(1, $6::bigint) n CROSS JOIN LATERAL (
        SELECT now() - interval '10 seconds' - $8::float8 * interval '1 day'
               - $7::float8 * pow((n * 7919 % $6)::float8 / $6, 1.0 + 0.4 * sin(n)) * interval '1 hour' AS at
    ) x CROSS JOIN (SELECT coalesce($9::integer, 0)::bigint AS factor) p
"""


def request_id(project_id: str, model: str, number: int) -> str:
    """Return the id of a request of the history. A number that 41 divides failed, another that 43 divides
    was refused, and another that 29 divides was aborted."""
    return f"req_{hashlib.md5(f'{project_id}{model}{number}'.encode(), usedforsecurity=False).hexdigest()}"


class BrowserHouse(msgspec.Struct, frozen=True):
    """A gateway with its database and engine, and the ids of what the database was seeded with."""

    url: str
    """The gateway's URL, without a slash at the end."""
    dsn: str
    operator_key: str
    projects: dict[str, str]
    """Ids of projects by name."""
    keys: dict[str, str]
    """An inference key of each project, by the project's name."""
    pool: str
    """The id of a pool whose replicas are still starting."""
    experiment: str
    """The id of a running experiment of acme's."""
    batch: str
    """The id of a batch of acme's that is half done and stays half done."""
    gateway: LiveGateway
    engine: FakeEngine

    @property
    def places(self) -> dict[str, str]:
        """Return the values of the placeholders in views' paths: ids by name, and the present month."""
        request = request_id(self.projects["acme"], f"{BASE}:pirate", 2)
        month = f"{datetime.datetime.now(datetime.UTC):%Y-%m}"
        ids = {"request": request, "pool": self.pool, "experiment": self.experiment, "batch": self.batch}
        return self.projects | ids | {"month": month}

    def operator(self) -> httpx.Client:
        """Return a client of the admin API that has the operator's key."""
        headers = {"authorization": f"Bearer {self.operator_key}"}
        return httpx.Client(base_url=f"{self.url}/v1/organization", headers=headers, timeout=PATIENCE_S)


@contextmanager
def open_house(dsn: str, folder: Path) -> Iterator[BrowserHouse]:
    """Seed a database and serve a gateway over the database until the context is left.

    dsn: the DSN of a migrated database without content.
    """
    model_dir = make_model_folder(folder / "model")
    operator_key = asyncio.run(make_operator_key(dsn))
    flags = ("--tokens-per-s", "200")
    with running_gateways(
        dsn, model_dir, engine_flags=flags, data_dir=folder, max_failed_keys=0, adapter_sources=SOURCES
    ) as installed:
        gateway = installed.gateway
        projects, keys = _seed(gateway.url, operator_key)
        made = [_make_batch(gateway.url, keys["acme"]) for _ in range(3)]
        asyncio.run(_write_history(dsn, projects))
        pool = _make_pool(gateway.url, operator_key, projects["hooli"])
        asyncio.run(_start_replicas(dsn, pool))
        running = _make_experiment(gateway.url, operator_key, dsn, projects["acme"])
        asyncio.run(_show_batches(dsn, made))
        yield BrowserHouse(
            gateway.url, dsn, operator_key, projects, keys, pool, running, made[2], gateway, installed.engine
        )


def _seed(url: str, operator_key: str) -> tuple[dict[str, str], dict[str, str]]:
    headers = {"authorization": f"Bearer {operator_key}"}
    with httpx.Client(base_url=f"{url}/v1/organization", headers=headers, timeout=PATIENCE_S) as client:

        def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            reply = client.post(path, json=body)
            assert reply.status_code == 200, f"{path}: {reply.text}"
            answer: dict[str, Any] = reply.json()
            return answer

        users = {
            email: post(
                "/users", {"email": email, "name": email.split("@")[0].title(), "role": role, "password": PASSWORD}
            )
            for email, role in ROLES.items()
        }
        projects = {name: post("/projects", {"name": name})["id"] for name in ADAPTERS}
        post(f"/projects/{projects['acme']}/users", {"user_id": users[MEMBER]["id"], "role": "admin"})
        keys = {}
        for name, project_id in projects.items():
            made = post(f"/projects/{project_id}/api_keys", {"name": f"{name} production", "scopes": ["inference"]})
            keys[name] = made["value"]
        entries = [{"input_nanos_per_million": 200_000_000, "output_nanos_per_million": 800_000_000}]
        post("/prices", {"currency": "usd", "entries": entries})
        for name, unit, most in (
            ("acme", "tokens", 2_000_000),
            ("acme", "requests", 5_000),
            ("globex", "tokens", 500_000),
        ):
            post(f"/projects/{projects[name]}/limits", {"unit": unit, "max": most, "window": "day"})
        post(f"/projects/{projects['acme']}/routes", {"name": "assistant", "document": ROUTE})
    return projects, keys


def _make_pool(url: str, operator_key: str, project_id: str) -> str:
    """Make a pool for one tenant alone, so that nobody else's models change; return its id."""
    body = {"name": "qwen3-0.6b", "model": "Qwen/Qwen3-0.6B", "num_replicas": 3, "settings": {"max_model_len": 8192}}
    body |= {"access": "listed", "grants": [{"project_id": project_id}]}
    headers = {"authorization": f"Bearer {operator_key}"}
    reply = httpx.post(f"{url}/v1/organization/pools", json=body, headers=headers, timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def _make_batch(url: str, key: str) -> str:
    """Make a batch of a bad file, so that no line of it ever runs; return the batch's id."""
    with httpx.Client(base_url=f"{url}/v1", headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as client:
        form: dict[str, Any] = {"files": {"file": ("reviews.jsonl", b"{no JSON\n")}, "data": {"purpose": "batch"}}
        file_id = client.post("/files", **form).json()["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        reply = client.post("/batches", json=body)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


_AS_IF_IT_RAN = """
    UPDATE batches SET status = $2, ended_at = CASE WHEN $2 = 'completed' THEN now() - interval '3 minutes' END,
        created_at = now() - interval '10 minutes',
        in_progress_at = now() - interval '9 minutes', leased_until = 'infinity', sealed_errors = NULL,
        num_total = 12000, num_completed = $3, num_failed = 37, lines_per_s = 9.4, input_tokens = 1204311,
        cached_tokens = 402117, output_tokens = 377420,
        failures = '{"model_not_found": 21, "context_length_exceeded": 12, "invalid_value": 4}'
    WHERE id = $1
"""


async def _show_batches(dsn: str, made: list[str]) -> None:
    """Change the rows of two of three refused batches so that one seems complete, and one half done."""
    conn = await asyncpg.connect(dsn)
    try:

        async def are_refused() -> bool:
            return bool(await conn.fetchval("SELECT count(*) = 3 FROM batches WHERE status = 'failed'"))

        await until(are_refused, "the files were not checked", pause_s=0.1)
        await conn.execute(_AS_IF_IT_RAN, made[1], "completed", 11963)
        await conn.execute(_AS_IF_IT_RAN, made[2], "in_progress", 5238)
    finally:
        await conn.close()


def _make_experiment(url: str, operator_key: str, dsn: str, project_id: str) -> str:
    """Start an experiment that has had units for two weeks; return its id."""
    headers = {"authorization": f"Bearer {operator_key}"}
    with httpx.Client(base_url=f"{url}/v1/organization", headers=headers, timeout=PATIENCE_S) as client:
        experiment_id = experiment.start_experiment(client, project_id)
    asyncio.run(_write_units(dsn, experiment_id))
    return experiment_id


async def _write_units(dsn: str, experiment_id: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await experiment.write_units(conn, experiment_id)
    finally:
        await conn.close()


async def _start_replicas(dsn: str, pool_id: str) -> None:
    """Register an agent that prepares a pool's model and starts two replicas, one of which fails."""
    async with await Database.connect(dsn) as database:
        agent = Agent(database, "host_house", "gpu-1")
        await agent.claim(num_gpus=2)
        await agent.prepare(pool_id)
        async with database.acquire() as conn:
            await hosts.label_host(conn, "host_house", {"zone": "west", "disk": "ssd"})
            await set_scaling(conn, pool_id, Bounds(1, 4))
        await agent.begin(pool_id, gpu=0, why="reading the weights: 1.1 of 1.5 GB")
        failed = await agent.begin(pool_id, gpu=1)
        await agent.move(failed, "failed", "The GPU has too little free memory: 1.2 GiB of 2 GiB.")


async def _write_history(dsn: str, projects: dict[str, str]) -> None:
    """Write usage of the last two days, less for each further tenant, and usage of days long ago."""
    conn = await asyncpg.connect(dsn)
    try:
        organization_id = await conn.fetchval("SELECT id FROM organizations")
        today = datetime.datetime.now(datetime.UTC).date()
        for days in (*range(HOURS_OF_HISTORY // 24 + 2), DAYS_OF_OLD_USAGE, DAYS_OF_OLD_USAGE + 1):
            await conn.execute("SELECT ensure_ledger_day($1)", today - datetime.timedelta(days=days))
        for place, (name, project_id) in enumerate(projects.items()):
            key_id = await conn.fetchval("SELECT id FROM api_keys WHERE project_id = $1", project_id)
            models: list[tuple[str, str | None]] = [(BASE, None)]
            for number, adapter in enumerate(ADAPTERS[name]):
                digest = f"{place:04x}{number + 1:04x}".ljust(64, "c")
                await put_adapter(conn, project_id, adapter, digest=digest, rank=8, size_bytes=4 << 20)
                adapter_id = await conn.fetchval(
                    "SELECT id FROM adapters WHERE project_id = $1 AND name = $2", project_id, adapter
                )
                models.append((f"{BASE}:{adapter}", adapter_id))
            for rank, (model, adapter_id) in enumerate(reversed(models)):
                num = 1200 // ((place + 1) * (rank + 1))
                whose = (organization_id, project_id, model, key_id, adapter_id)
                await conn.execute(_HISTORY, *whose, num, float(HOURS_OF_HISTORY), 0.0, 1, "default")
        project_id = projects["acme"]
        key_id = await conn.fetchval("SELECT id FROM api_keys WHERE project_id = $1", project_id)
        old = (
            organization_id,
            project_id,
            f"{BASE}:retired",
            key_id,
            None,
            20,
            1.0,
            float(DAYS_OF_OLD_USAGE),
            1,
            "default",
        )
        await conn.execute(_HISTORY, *old)
        await _roll_all_up(conn)
    finally:
        await conn.close()


async def write_unpriced(dsn: str, project_id: str, num: int, *, days_ago: float = 0.0) -> None:
    """Write requests of one moment, in the form that requests have without prices.

    num: the number of requests. days_ago: the days since that moment.
    """
    conn = await asyncpg.connect(dsn)
    try:
        organization_id = await conn.fetchval("SELECT id FROM organizations")
        await conn.execute(
            _HISTORY, organization_id, project_id, BASE, "key_none", None, num, 0.0, days_ago, None, "default"
        )
        await _roll_all_up(conn)
    finally:
        await conn.close()


async def write_copies(dsn: str, project_id: str, num: int) -> None:
    """Write copies of requests of the history for a shadow arm that serves the base model.

    num: the number of copies.
    """
    conn = await asyncpg.connect(dsn)
    try:
        organization_id = await conn.fetchval("SELECT id FROM organizations")
        key_id = await conn.fetchval("SELECT id FROM api_keys WHERE project_id = $1", project_id)
        await conn.execute(_HISTORY, organization_id, project_id, BASE, key_id, None, num, 1.0, 0.0, 1, "shadow")
        await _roll_all_up(conn)
    finally:
        await conn.close()


async def _roll_all_up(conn: asyncpg.Connection) -> None:
    while True:
        async with conn.transaction():
            if not await roll_up(conn):
                return


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lorikeet-look-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = EmbeddedPostgres(folder / "postgres")
        dsn = server.start()
        try:
            asyncio.run(migrate(dsn))
            with open_house(dsn, folder / "house") as house:
                print(f"{house.url}/admin/", *ROLES, PASSWORD, sep="\n", flush=True)
                while True:
                    time.sleep(3600)
        except KeyboardInterrupt:
            pass
        finally:
            server.stop()


if __name__ == "__main__":
    main()
