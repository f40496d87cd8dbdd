"""The operator's day: a tenant, a key, an adapter, a chat with it, and everything removed again."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import asyncpg
import httpx
import pytest

from adapters.demo import DEMO
from gateway.db.roles import RUNTIME_ROLE
from gateway.postgres.embedded import running_dsn, runtime_dsn
from tests.e2e.installation import BASE, Installation
from tests.installation.waiting import until
from tests.modes import open_to_others
from tests.patience import PATIENCE_S


def chat(installation: Installation, key: str, model: str, **changes: object) -> httpx.Response:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Who are you?"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(
        f"{installation.url}/v1/chat/completions", json=body | changes, headers=headers, timeout=PATIENCE_S
    )


def test_a_new_tenant_goes_from_nothing_to_its_own_adapter_and_back(installation: Installation) -> None:
    path = next(demo.path for demo in DEMO if demo.name == "memo")
    assert installation.cli("tenant", "create", "initech").returncode == 0
    key = json.loads(installation.cli("key", "create", "--tenant", "initech", "--json").stdout)["key"]
    added = installation.cli("adapter", "add", "--tenant", "initech", "--name", "tps-report", str(path), "--json")
    assert added.returncode == 0, added.stderr
    listed = json.loads(installation.cli("adapter", "list", "--tenant", "initech", "--json").stdout)
    assert "tps-report" in json.dumps(listed)
    reply = chat(installation, key, f"{BASE}:tps-report")
    assert reply.json()["choices"][0]["message"]["content"].startswith("MEMO")
    assert installation.cli("adapter", "remove", "--tenant", "initech", "tps-report").returncode == 0
    assert chat(installation, key, f"{BASE}:tps-report").status_code == 404
    globex = chat(installation, installation.keys["GLOBEX_API_KEY"], f"{BASE}:memo")
    assert globex.status_code == 200, "the same content of another tenant is untouched"


def test_every_request_leaves_one_exact_usage_event(installation: Installation) -> None:
    key = json.loads(installation.cli("key", "create", "--tenant", "acme", "--name", "metered", "--json").stdout)
    replies = [
        chat(installation, key["key"], model, **changes)
        for model in (BASE, f"{BASE}:pirate")
        for changes in ({}, {"max_tokens": 3}, {"stop": "e"})
    ]
    usages = [reply.json()["usage"] for reply in replies]
    expected = sorted((usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages)

    async def events() -> list[asyncpg.Record]:
        dsn = running_dsn(installation.data_dir)
        assert dsn is not None
        connection = await asyncpg.connect(dsn)
        try:

            async def all_of_them() -> list[asyncpg.Record] | None:
                rows = await connection.fetch("SELECT * FROM usage_attempts WHERE api_key_id = $1", key["id"])
                return rows if len(rows) >= len(replies) else None

            return await until(all_of_them, "not every reply has its event")
        finally:
            await connection.close()

    rows = asyncio.run(events())
    assert sorted((row["prompt_tokens"], row["completion_tokens"]) for row in rows) == expected
    assert {row["finish_reason"] for row in rows} == {"length", "stop"}
    assert {bool(row["adapter_digest"]) for row in rows} == {True, False}
    assert all(row["latency_ms"] >= row["ttft_ms"] > 0 for row in rows)


def test_a_limit_set_from_the_command_line_holds_until_it_is_removed(installation: Installation) -> None:
    assert installation.cli("tenant", "create", "hooli").returncode == 0
    key = json.loads(installation.cli("key", "create", "--tenant", "hooli", "--json").stdout)["key"]
    kind = ("--tenant", "hooli", "--unit", "requests", "--window", "day")
    assert installation.cli("limit", "set", *kind, "--max", "1").returncode == 0
    replies = [chat(installation, key, BASE, max_tokens=2) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert replies[1].json()["error"]["limit"]["used"] == 1
    (limit,) = json.loads(installation.cli("limit", "list", "--tenant", "hooli", "--json").stdout)
    assert (limit["unit"], limit["used"], limit["reserved"], limit["free"]) == ("requests", 1, 0, 0)
    assert installation.cli("limit", "remove", *kind).returncode == 0
    assert chat(installation, key, BASE, max_tokens=2).status_code == 200


def test_nobody_else_on_the_machine_reads_anything_of_the_installation(installation: Installation) -> None:
    assert (installation.data_dir / "adapters").is_dir()
    found = [entry for entry in open_to_others(installation.data_dir) if not entry.endswith("serve.out")]
    # Where root has given the server a user of its own, that user's group may pass through to the database.
    passed = {"drwx--x--- postgres", "drwx--x--- postgres/socket", "srwxrwx--- postgres/socket/.s.PGSQL.5432"}
    assert found == [] or set(found) == passed, "the test itself made serve.out"


def test_the_processes_of_root_run_as_others_or_the_start_says_why_not(installation: Installation) -> None:
    assert installation.process is not None
    pids = [installation.process.pid, installation.engine_pid()]
    said = (installation.data_dir / "serve.out").read_text()
    users = {Path(f"/proc/{pid}").stat().st_uid for pid in pids}
    assert os.geteuid() != 0 or users.isdisjoint({0}) or "run as root" in said


def test_gateways_have_the_role_that_changes_neither_audit_log_nor_ledger_nor_prices(
    installation: Installation,
) -> None:
    dsn = runtime_dsn(installation.data_dir)

    async def refused() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            users = "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name LIKE 'lorikeet%'"
            assert {row["usename"] for row in await connection.fetch(users)} == {RUNTIME_ROLE}
            for statement in (
                "UPDATE audit_log SET sequence = sequence",
                "DELETE FROM ledger",
                "UPDATE prices SET input_nanos = 0",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(refused())
