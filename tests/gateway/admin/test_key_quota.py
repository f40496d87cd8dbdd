"""The number of a project's keys and service accounts is bounded, and uploads are refused where the disk is nearly
full."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.organization.key_quota import MAX_KEYS, MAX_SERVICE_ACCOUNTS
from gateway.db.pool import Database
from gateway.support.disk import DiskReserve
from tests.gateway.admin_server import AdminServer, serve_admin

_FILL_KEYS = """
    INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes)
    SELECT 'key_' || n, 'project', p.organization_id, p.id, 'x', 'sk-lk-x', sha256(n::text::bytea), '{inference}'
    FROM projects p, generate_series(1, $2::integer) n WHERE p.id = $1
"""
_FILL_ACCOUNTS = """
    INSERT INTO service_accounts (id, project_id, name)
    SELECT 'sa_' || n, $1, 'x' FROM generate_series(1, $2::integer) n
"""


async def test_keys_and_service_accounts_of_a_project_have_a_bound(server: AdminServer, database: Database) -> None:
    async with server.client(server.operator_key) as operator:
        project = (await operator.post("/projects", json={"name": "acme"})).json()["id"]
        key = {"name": "one more", "scopes": ["inference"]}
        async with database.acquire() as conn:
            await conn.execute("ALTER TABLE api_keys DISABLE TRIGGER api_keys_changed")
            await conn.execute(_FILL_ACCOUNTS, project, MAX_SERVICE_ACCOUNTS)
            refused = await operator.post(f"/projects/{project}/service_accounts", json={"name": "one more"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_service_accounts")
            assert (await operator.post(f"/projects/{project}/api_keys", json=key)).status_code == 200
            await conn.execute(_FILL_KEYS, project, MAX_KEYS - 1)
            await conn.execute("DELETE FROM service_accounts WHERE id = 'sa_1'")
            for path, body in (("api_keys", key), ("service_accounts", {"name": "one more"})):
                refused = await operator.post(f"/projects/{project}/{path}", json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_many_keys"), path
            await conn.execute("UPDATE api_keys SET revoked_at = now() WHERE id = 'key_1'")
        assert (await operator.post(f"/projects/{project}/api_keys", json=key)).status_code == 200
        other = (await operator.post("/projects", json={"name": "globex"})).json()["id"]
        assert (await operator.post(f"/projects/{other}/api_keys", json=key)).status_code == 200


@pytest.mark.parametrize("reserve_bytes", [0, 1 << 62])
async def test_no_upload_begins_on_a_disk_that_is_nearly_full(
    database: Database, tmp_path: Path, reserve_bytes: int
) -> None:
    async with (
        serve_admin(database, tmp_path, disk=DiskReserve(tmp_path, reserve_bytes)) as server,
        server.client(server.operator_key) as operator,
    ):
        project = (await operator.post("/projects", json={"name": "acme"})).json()["id"]
        imports = f"/projects/{project}/adapter_imports"
        begun = await operator.post(imports, json={"name": "pirate", "size_bytes": 1000})
        whole = await operator.post(
            f"/projects/{project}/adapters", files={"file": ("a.tar", b"x" * 100)}, data={"name": "pirate"}
        )
        fetched = await operator.post(
            f"/projects/{project}/adapters",
            json={"name": "pirate", "source": "https://models.example.com/pirate.tar"},
        )
        codes = [reply.json().get("error", {}).get("code") for reply in (begun, whole, fetched)]
        if reserve_bytes:
            assert codes == ["storage_full"] * 3
            assert begun.status_code == 503
        else:
            assert "storage_full" not in codes and begun.status_code == 200
