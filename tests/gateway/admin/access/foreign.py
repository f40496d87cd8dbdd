"""Another organization, with an object of every kind."""

from __future__ import annotations

import msgspec

from gateway.admin.limits.spend_alerts import SetSpendAlert
from gateway.db.organization.audit import Author
from gateway.db.pools.pools import create_pool
from gateway.db.pools.provider_keys import list_provider_keys
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.revisions import add_revision
from tests.gateway.admin.authenticator import Device
from tests.gateway.admin.routes import EXPERIMENT, GOOD_BODIES, ROUTE
from tests.gateway.admin_server import PASSWORD, AdminServer


class ForeignIds(msgspec.Struct, frozen=True):
    """Ids of another organization's objects."""

    project_id: str
    user_id: str
    account_id: str
    key_id: str
    admin_key_id: str
    limit_id: str
    webhook_id: str
    alert_id: str
    delivery_id: str
    import_id: str
    pool_id: str
    replica_id: str
    experiment_id: str
    provider_key_id: str
    file_id: str
    batch_id: str
    passkey_id: str
    rate_limit_id: str = "rl-tiny:pirate"
    name: str = "pirate"

    @property
    def other_project_id(self) -> str:
        return self.project_id


async def make_foreign(server: AdminServer) -> ForeignIds:
    """Make an organization with an object of every kind, and return their ids."""
    key = await server.admin_key("admin_read", "admin_write", organization="other")
    user = await server.user("someone@other.example.com", "owner", key)
    async with server.client(key) as other:
        project = (await other.post("/projects", json={"name": "theirs"})).json()["id"]
        account = (await other.post(f"/projects/{project}/service_accounts", json={"name": "bot"})).json()
        admin_key = (await other.post("/admin_api_keys", json={"name": "theirs"})).json()["id"]
        await other.post(f"/projects/{project}/users", json={"user_id": user["id"], "role": "viewer"})
        limit = (await other.post("/limits", json={"unit": "tokens", "window": "day", "max": 1})).json()["id"]
        webhook = (await other.post("/webhooks", json={"url": "https://example.com/theirs"})).json()["id"]
        alert = (await other.post("/spend_alerts", json=GOOD_BODIES[SetSpendAlert])).json()["id"]
        delivery = {"name": "theirs", "kind": "usage", "format": "csv", "schedule": "daily"}
        delivery |= {"destination": {"type": "folder", "path": "theirs"}}
        delivered = (await other.post("/deliveries", json=delivery)).json()["id"]
        upload = {"name": "pirate", "size_bytes": 9}
        import_id = (await other.post(f"/projects/{project}/adapter_imports", json=upload)).json()["id"]
        refused = await other.post("/pools", json={"name": "theirs", "model": "demo"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        organization_id = (await other.get("")).json()["id"]
    async with server.services.database.transaction() as conn:
        made = await create_pool(conn, organization_id, "theirs", num_replicas=1)
        assert made is not None
        pool = made.id
        await add_revision(conn, pool, "demo", {})
        replica = (await add_running_replica(conn, pool, 1, "ipc:///run/theirs.sock")).id
        await server.services.provider_keys.keep(conn, project, pool, "sk-0123456789abcdef")
        (provider_key,) = await list_provider_keys(conn, project)
    file_id, batch_id = await _make_batch(server, organization_id, project, account["api_key"]["id"])
    async with server.client(key) as other:
        experiment = (await other.post(f"/projects/{project}/experiments", json=EXPERIMENT)).json()["id"]
        metric = {"name": "pirate", "type": "boolean", "goal": "increase"}
        for path, body in (
            ("feedback_metrics", metric),
            ("experiment_layers", {"name": "pirate"}),
            ("holdouts", {"name": "pirate", "size": 1}),
            ("routes", {"name": "pirate", "document": ROUTE}),
        ):
            made_there = await other.post(f"/projects/{project}/{path}", json=body)
            assert made_there.status_code == 200, made_there.text
        shared = await other.post("/routes", json={"name": "pirate", "document": ROUTE})
        assert shared.status_code == 200, shared.text
    passkey = await _add_passkey(server, user["email"])
    ids = (user["id"], account["id"], account["api_key"]["id"], admin_key, limit, webhook, alert, delivered, import_id)
    return ForeignIds(project, *ids, pool, replica, experiment, provider_key.id, file_id, batch_id, passkey)


async def _add_passkey(server: AdminServer, email: str) -> str:
    """Return the id of a new passkey of a person."""
    async with server.person(email) as person:
        url = f"{server.url}/admin/v1/passkeys"
        asked = (await person.post(url, json={"password": PASSWORD})).json()
        made = await person.post(f"{url}/confirm", json=Device().make(asked))
        assert made.status_code == 200, made.text
        return str(made.json()["id"])


async def _make_batch(server: AdminServer, organization_id: str, project_id: str, key_id: str) -> tuple[str, str]:
    """Return the ids of a new file and of a batch of that file."""
    files = server.services.files
    part = await files.content.begin(project_id)
    await part.write(b"{}")
    await part.flush()
    file = await files.make(project_id, part, name="a.jsonl", purpose="batch", keep_seconds=None)
    author = Author(organization_id=organization_id, kind="api_key", id=key_id, email=None, address="", request_id="")
    batch = await server.services.batches.create(
        project_id,
        author,
        api_key_id=key_id,
        endpoint="/v1/completions",
        input_file_id=file.id,
        metadata={},
        keep_seconds=None,
    )
    return file.id, batch.row.id
