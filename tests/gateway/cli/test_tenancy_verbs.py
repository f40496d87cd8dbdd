"""Tenants, keys, people and the audit log from the command line: scriptable, and harmless to repeat."""

from __future__ import annotations

import io

import httpx
import pytest

from gateway.domain.errors import InvalidApiKey, Suspended
from tests.gateway.admin.authenticator import Device
from tests.gateway.admin_server import PASSWORD, AdminServer
from tests.gateway.cli.conftest import Cli


async def test_a_tenant_is_suspended_resumed_and_deleted(lorikeet: Cli, server: AdminServer) -> None:
    authenticate = server.services.authenticator.authenticate
    created = await lorikeet.json("tenant", "create", "acme")
    key = (await lorikeet.json("key", "create", "--tenant", "acme"))["key"]
    for _ in range(2):
        assert (await lorikeet.json("tenant", "suspend", "acme"))["status"] == "suspended"
    with pytest.raises(Suspended):
        await authenticate(f"Bearer {key}")
    assert await lorikeet("tenant", "resume", "acme") == (0, "tenant acme is active\n", "")
    deleted = await lorikeet.json("tenant", "delete", "acme", "--retention-days", "7")
    assert (deleted["id"], deleted["purge_after"] - deleted["archived_at"]) == (created["id"], 7 * 86_400)
    with pytest.raises(InvalidApiKey):
        await authenticate(f"Bearer {key}")
    assert await lorikeet.json("tenant", "list") == []
    assert [tenant["status"] for tenant in await lorikeet.json("tenant", "list", "--deleted")] == ["archived"]
    code, _, err = await lorikeet("tenant", "delete", "acme")
    assert (code, err.startswith("lorikeet: there is no tenant named 'acme'")) == (1, True)


async def test_the_content_that_may_be_stored_for_a_tenant_is_changed_and_recorded(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    told = (
        "tenant acme: replies for an Idempotency-Key are not kept, completions are stored for 30 days, "
        "content is not logged, service tiers: default, flex\n"
    )
    assert await lorikeet("tenant", "modify", "acme", "--keep-replies", "no", "--store-days", "30") == (0, told, "")
    shown = await lorikeet.json("tenant", "modify", "acme", "--keep-replies", "yes")
    assert (shown["name"], shown["keep_replies"], shown["store_days"]) == ("acme", True, 30)
    assert await lorikeet.json("tenant", "modify", "acme") == shown
    assert shown["log_content_days"] == 0
    _, told, _ = await lorikeet("tenant", "modify", "acme", "--log-content-days", "7")
    assert told.endswith(", content is logged for 7 days, service tiers: default, flex\n")
    _, told, _ = await lorikeet("tenant", "modify", "acme", "--service-tiers", "priority,default")
    assert told.endswith(", service tiers: default, priority\n")
    code, _, err = await lorikeet("tenant", "modify", "acme", "--service-tiers", "flex")
    assert (code, "expected 'default' among them" in err) == (1, True)
    code, _, err = await lorikeet("tenant", "modify", "acme", "--service-tiers", "default,gold")
    assert (code, "service_tiers" in err) == (1, True)
    code, _, err = await lorikeet("tenant", "modify", "acme", "--store-days", "366")
    assert (code, "store_days" in err) == (1, True)
    events = [row["type"] for row in await lorikeet.json("audit", "list", "--tenant", "acme")]
    assert events == ["project.updated"] * 4 + ["project.created"]


async def test_a_key_is_narrowed_rotated_and_suspended(lorikeet: Cli, server: AdminServer) -> None:
    await lorikeet.json("tenant", "create", "acme")
    narrow = ["--scope", "inference", "--scope", "adapters", "--model", "tiny", "--ip", "10.0.0.0/8"]
    made = await lorikeet.json("key", "create", "--tenant", "acme", *narrow, "--expires-in-days", "1")
    (listed,) = await lorikeet.json("key", "list", "--tenant", "acme")
    assert (listed["scopes"], listed["models"], listed["ip_allowlist"]) == (
        ["adapters", "inference"],
        ["tiny"],
        ["10.0.0.0/8"],
    )
    assert listed["expires_at"] - listed["created_at"] in (86_399, 86_400, 86_401)
    rotated = await lorikeet.json("key", "rotate", made["id"], "--grace", "60")
    assert rotated["id"] == made["id"] and rotated["key"] != made["key"]
    for secret in (made["key"], rotated["key"]):
        await server.services.authenticator.authenticate(f"Bearer {secret}", "10.1.2.3")
    for _ in range(2):
        assert (await lorikeet.json("key", "suspend", made["id"]))["suspended_at"] is not None
    assert (await lorikeet.json("key", "resume", made["id"]))["suspended_at"] is None
    _, out, _ = await lorikeet("key", "rotate", made["id"])
    await server.services.authenticator.authenticate(f"Bearer {out.strip()}", "10.1.2.3")


async def test_a_key_for_a_model_that_is_not_there_yet_is_made_with_a_warning(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    create = ("key", "create", "--tenant", "acme", "--model", "tiny", "--model", "nope")
    code, out, err = await lorikeet(*create)
    assert (code, out.startswith("sk-")) == (0, True)
    assert [line for line in err.splitlines() if "no model" in line] == [
        "lorikeet: tenant 'acme' has no model 'nope' now: the key may use one that is made later"
    ]
    (listed,) = await lorikeet.json("key", "list", "--tenant", "acme")
    assert sorted(listed["models"]) == ["nope", "tiny"]
    assert "no model" not in (await lorikeet("key", "create", "--tenant", "acme", "--model", "tiny"))[2]


async def test_the_first_user_logs_in_and_joins_a_tenant(
    lorikeet: Cli, server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lorikeet.json("tenant", "create", "acme")
    create = ("user", "create", "--email", "Ann@example.com", "--role", "owner", "--password-stdin")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    user = await lorikeet.json(*create)
    assert (user["email"], user["role"], user["created"]) == ("ann@example.com", "owner", True)
    async with server.person("ann@example.com") as ann:
        assert (await ann.get("/projects")).status_code == 200
        (login,) = await lorikeet.json("user", "logins", "list", "--email", "ann@example.com")
        assert (login["address"], login["current"]) == ("127.0.0.1", False)
        code, out, _ = await lorikeet("user", "logins", "list", "--email", "ann@example.com")
        assert (code, out.splitlines()[0].split()[:2], login["id"] in out) == (0, ["ID", "ADDRESS"], True)
        ended = await lorikeet.json("user", "logins", "revoke", "--email", "ann@example.com")
        assert ended["ids"] == [login["id"]]
        assert await lorikeet.json("user", "logins", "list", "--email", "ann@example.com") == []
        assert (await ann.get("/projects")).status_code == 401
    async with server.person("ann@example.com") as ann:
        ann.base_url = httpx.URL(f"{server.url}/admin/v1")
        asked = (await ann.post("/passkeys", json={"password": PASSWORD})).json()
        made = (await ann.post("/passkeys/confirm", json=Device().make(asked))).json()
        assert await lorikeet.json("user", "passkeys", "list", "--email", "ann@example.com") == [made]
        assert [user["num_passkeys"] for user in await lorikeet.json("user", "list")] == [1]
        header, ann_row = (await lorikeet.done("user", "list")).splitlines()
        assert "SECOND FACTOR" in header and "  1 passkey  " in ann_row
        code, out, _ = await lorikeet("user", "passkeys", "list", "--email", "ann@example.com")
        assert (code, out.splitlines()[1].split()[:2]) == (0, [made["id"], "laptop"])
        removed = await lorikeet.json("user", "passkeys", "remove", made["id"], "--email", "ann@example.com")
        assert (removed["deleted"], (await ann.get("/passkeys")).status_code) == (True, 401)
        assert "  none  " in (await lorikeet.done("user", "list")).splitlines()[1]

    code, _, err = await lorikeet("user", "create", "--email", "<b>bob</b>@example.com")
    assert (code, "Invalid value for 'email'" in err) == (1, True)
    await lorikeet.json("user", "create", "--email", "bob@example.com")
    for role in ("viewer", "viewer", "admin"):
        added = await lorikeet.json("member", "add", "--tenant", "acme", "--email", "bob@example.com", "--role", role)
        assert added["role"] == role
    (member,) = await lorikeet.json("member", "list", "--tenant", "acme")
    assert member["email"] == "bob@example.com"
    await lorikeet.json("member", "remove", "--tenant", "acme", "--email", "bob@example.com")
    assert await lorikeet.json("member", "list", "--tenant", "acme") == []
    assert (await lorikeet.json("user", "modify", "--email", "bob@example.com", "--role", "billing"))[
        "role"
    ] == "billing"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    assert (await lorikeet.json("user", "reset", "--email", "bob@example.com", "--password-stdin"))["has_password"]
    await lorikeet.json("user", "remove", "--email", "bob@example.com")
    assert [user["email"] for user in await lorikeet.json("user", "list")] == ["ann@example.com"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = await lorikeet(*create)
    assert (code, err) == (1, "lorikeet: standard input is empty: expected a password\n")


async def test_creating_an_existing_user_with_other_values_is_an_error(
    lorikeet: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("user", "create", "--email", "ann@example.com")
    made = await lorikeet.json(*create, "--name", "Ann", "--role", "viewer")
    for same in ((), ("--role", "viewer"), ("--name", "Ann", "--role", "viewer")):
        assert await lorikeet.json(*create, *same) == made | {"created": False}
    begin = "lorikeet: there is already a user with the address ann@example.com: "
    code, _, err = await lorikeet(*create, "--name", "Bob", "--role", "owner")
    assert (code, err) == (
        1,
        f"{begin}the name is 'Ann'; the role is viewer (`lorikeet user modify` changes it)\n",
    )
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    code, out, err = await lorikeet(*create, "--password-stdin", "--json")
    assert (code, out) == (1, "")
    assert err == f"{begin}the password stays as it is (`lorikeet user reset` sets another)\n"
    assert not (await lorikeet.json("user", "list"))[0]["has_password"]


async def test_service_accounts_and_operators_keys_are_created_used_and_removed(
    lorikeet: Cli, server: AdminServer
) -> None:
    await lorikeet.json("tenant", "create", "acme")
    account = await lorikeet.json("service-account", "create", "--tenant", "acme", "--name", "bot")
    await server.services.authenticator.authenticate(f"Bearer {account['key']}")
    (listed,) = await lorikeet.json("service-account", "list", "--tenant", "acme")
    assert (listed["id"], listed["name"]) == (account["id"], "bot")
    await lorikeet.json("service-account", "remove", "--tenant", "acme", account["id"])
    assert await lorikeet.json("service-account", "list", "--tenant", "acme") == []

    reader = await lorikeet.json("admin-key", "create", "--name", "cost report", "--read-only")
    assert (await lorikeet("tenant", "list", LORIKEET_ADMIN_KEY=reader["key"]))[0] == 0
    code, _, err = await lorikeet("tenant", "create", "globex", LORIKEET_ADMIN_KEY=reader["key"])
    assert (code, err.startswith("lorikeet: You have insufficient permissions")) == (1, True)
    near = await lorikeet.json("admin-key", "create", "--name", "near", "--ip", "127.0.0.0/8", "--expires-in-days", "1")
    far = await lorikeet.json("admin-key", "create", "--name", "far", "--ip", "192.0.2.0/24")
    assert (await lorikeet("tenant", "list", LORIKEET_ADMIN_KEY=near["key"]))[0] == 0
    assert (await lorikeet("tenant", "list", LORIKEET_ADMIN_KEY=far["key"]))[0] == 1
    shown = {key["id"]: key for key in await lorikeet.json("admin-key", "list")}
    assert shown[far["id"]]["ip_allowlist"] == ["192.0.2.0/24"]
    assert shown[near["id"]]["expires_at"] - shown[near["id"]]["created_at"] in (86_399, 86_400, 86_401)
    for key in (near, far):
        await lorikeet.json("admin-key", "revoke", key["id"])
    await lorikeet.json("admin-key", "revoke", reader["id"])
    assert [key["revoked_at"] is None for key in await lorikeet.json("admin-key", "list")] == [True] + 3 * [False]


async def test_the_organization_is_suspended_and_resumed(lorikeet: Cli) -> None:
    assert await lorikeet("organization", "suspend") == (0, "organization default is suspended\n", "")
    assert await lorikeet("organization", "resume") == (0, "organization default is active\n", "")
    assert (await lorikeet.json("organization", "show"))["suspended_at"] is None


async def test_the_audit_log_is_listed_and_verified(lorikeet: Cli, server: AdminServer) -> None:
    await lorikeet.json("tenant", "create", "acme")
    await lorikeet.json("tenant", "suspend", "acme")
    await lorikeet.json("tenant", "create", "globex")
    assert [row["type"] for row in await lorikeet.json("audit", "list", "--tenant", "acme")] == [
        "project.suspended",
        "project.created",
    ]
    assert len(await lorikeet.json("audit", "list", "--event", "project.created")) == 2
    code, out, _ = await lorikeet("audit", "list")
    assert (code, out.splitlines()[0].split()[:3]) == (0, ["NUMBER", "TIME", "EVENT"])
    code, out, _ = await lorikeet("audit", "verify")
    assert (code, out.startswith("the audit log holds: 3 rows, head ")) == (0, True)
    async with server.services.database.acquire() as conn:
        await conn.execute("ALTER TABLE audit_log DISABLE TRIGGER audit_log_is_append_only")
        await conn.execute("UPDATE audit_log SET address = '192.0.2.1' WHERE sequence = 2")
    code, out, _ = await lorikeet("audit", "verify")
    assert (code, out.startswith("the audit log is broken at row 2 (audit_")) == (1, True)
    code, out, _ = await lorikeet("audit", "verify", "--json")
    assert (code, '"sequence": 2' in out) == (1, True)
