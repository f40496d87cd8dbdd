"""People log in by passkeys, which stand for both factors; forged, replayed and borrowed answers are refused."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.organization.passkeys import MAX_PASSKEYS
from gateway.db.organization.passkeys import LockedOutUser
from gateway.db.pool import Database
from gateway.domain.tenancy.relying_party import RelyingParty
from gateway.domain.tenancy.totp import code_at
from gateway.tenancy.locked_out import locked_out_notice
from gateway.tenancy.passkeys import LIFETIME
from tests.gateway.admin.authenticator import USER_PRESENT, Device
from tests.gateway.admin_server import PARTY, PASSWORD, AdminServer, serve_admin
from tests.patience import PATIENCE_S

EMAIL = "ann@example.com"
PROOF = {"password": PASSWORD}


@pytest.fixture
async def ann(server: AdminServer) -> str:
    """Return the id of an owner who can log in."""
    return str((await server.user(EMAIL, "owner"))["id"])


def browser_of(server: AdminServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{server.url}/admin/v1", timeout=PATIENCE_S)


@asynccontextmanager
async def logged_in_browser(server: AdminServer, email: str = EMAIL) -> Any:
    async with server.person(email) as browser:
        browser.base_url = httpx.URL(f"{server.url}/admin/v1")
        yield browser


async def post_for(browser: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await browser.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def add_passkey(browser: httpx.AsyncClient, device: Device, name: str = "laptop") -> dict[str, Any]:
    asked = await post_for(browser, "/passkeys", PROOF)
    return await post_for(browser, "/passkeys/confirm", device.make(asked, name))


async def log_in(browser: httpx.AsyncClient, device: Device) -> httpx.Response:
    asked = await post_for(browser, "/login/passkey", {})
    return await browser.post("/login/passkey/confirm", json=device.sign(asked))


def error_of(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json().get("error", {}).get("code")


async def audit_events(server: AdminServer) -> list[str]:
    async with server.client(server.operator_key) as operator:
        rows = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    return [row["type"] for row in rows]


async def test_a_passkey_logs_its_holder_in_without_a_password(server: AdminServer, ann: str) -> None:
    device = Device()
    async with logged_in_browser(server) as browser:
        made = await add_passkey(browser, device)
        assert (made["name"], made["last_used_at"]) == ("laptop", None)
    async with browser_of(server) as browser:
        assert (await browser.get("/login")).json()["passkey_origin"] == PARTY.origin
        reply = await log_in(browser, device)
        assert (reply.status_code, reply.json()["user_id"]) == (200, ann)
        assert {"lorikeet_login", "lorikeet_device"} <= set(reply.cookies)
        session = (await browser.get("/session")).json()
        assert (session["email"], session["has_passkey"]) == (EMAIL, True)
        (shown,) = (await browser.get("/passkeys")).json()["data"]
        assert shown["last_used_at"] is not None
    assert (await audit_events(server))[:2] == ["login.succeeded", "user.passkey_added"]


async def test_each_answer_is_good_once(server: AdminServer, ann: str) -> None:
    device = Device()
    async with logged_in_browser(server) as browser:
        asked = await post_for(browser, "/passkeys", PROOF)
        body = device.make(asked)
        assert (await browser.post("/passkeys/confirm", json=body)).status_code == 200
        assert error_of(await browser.post("/passkeys/confirm", json=body)) == (409, "challenge_used")
    async with browser_of(server) as browser:
        answer = device.sign(await post_for(browser, "/login/passkey", {}))
        cookie = browser.cookies["lorikeet_passkey"]
        replies = await asyncio.gather(*(browser.post("/login/passkey/confirm", json=answer) for _ in range(4)))
        assert sorted(reply.status_code for reply in replies) == [200, 401, 401, 401]
        browser.cookies.set("lorikeet_passkey", cookie)
        assert error_of(await browser.post("/login/passkey/confirm", json=answer)) == (401, "invalid_credentials")


async def test_a_challenge_is_bound_to_its_browser_its_login_and_its_purpose(server: AdminServer, ann: str) -> None:
    device, other = Device(), Device()
    async with (
        logged_in_browser(server) as browser,
        logged_in_browser(server) as elsewhere,
        browser_of(server) as stranger,
    ):
        await add_passkey(browser, device)
        asked = await post_for(browser, "/passkeys", PROOF)
        assert error_of(await elsewhere.post("/passkeys/confirm", json=other.make(asked))) == (400, "invalid_passkey")
        to_log_in = await post_for(browser, "/login/passkey", {})
        assert error_of(await stranger.post("/login/passkey/confirm", json=device.sign(to_log_in)))[0] == 401
        for_both = to_log_in | {"user_handle": asked["user_handle"]}
        assert error_of(await browser.post("/passkeys/confirm", json=other.make(for_both))) == (400, "invalid_passkey")
        assert (await browser.post("/login/passkey/confirm", json=device.sign(to_log_in))).status_code == 200


async def test_a_challenge_of_a_clock_that_is_far_ahead_is_refused(database: Database, tmp_path: Path) -> None:
    now = [time.time()]
    device = Device()
    async with serve_admin(database, tmp_path, clock=lambda: now[0]) as server:
        await server.user(EMAIL, "owner")
        async with logged_in_browser(server) as browser:
            await add_passkey(browser, device)
        async with browser_of(server) as browser:
            for ahead_s, status in ((30, 200), (600, 401)):
                now[0] += ahead_s
                asked = await post_for(browser, "/login/passkey", {})
                now[0] -= ahead_s
                reply = await browser.post("/login/passkey/confirm", json=device.sign(asked))
                assert reply.status_code == status


async def test_an_answer_about_another_passkey_adds_no_passkey(server: AdminServer, ann: str) -> None:
    async with logged_in_browser(server) as browser:
        asked = await post_for(browser, "/passkeys", PROOF)
        body = Device().make(asked) | {"credential_id": base64.b64encode(b"another").decode()}
        assert error_of(await browser.post("/passkeys/confirm", json=body)) == (400, "invalid_passkey")


async def test_a_challenge_is_over_after_five_minutes(database: Database, tmp_path: Path) -> None:
    now = [time.time()]
    async with serve_admin(database, tmp_path, clock=lambda: now[0]) as server:
        await server.user(EMAIL, "owner")
        device = Device()
        async with logged_in_browser(server) as browser:
            await add_passkey(browser, device)
            late = await post_for(browser, "/passkeys", PROOF)
        async with browser_of(server) as browser:
            asked = await post_for(browser, "/login/passkey", {})
            now[0] += LIFETIME.total_seconds() + 2
            assert (await browser.post("/login/passkey/confirm", json=device.sign(asked))).status_code == 401
            assert (await log_in(browser, device)).status_code == 200
        async with logged_in_browser(server) as browser:
            assert error_of(await browser.post("/passkeys/confirm", json=Device().make(late)))[0] == 400


LIES: dict[str, Callable[[Device], None]] = {
    "an unverified user": lambda device: setattr(device, "flags", USER_PRESENT),
    "an absent user": lambda device: setattr(device, "flags", 0),
    "a page of another site": lambda device: setattr(device, "origin", "https://evil.example.com"),
    "a page without TLS": lambda device: setattr(device, "origin", f"http://{PARTY.id}"),
    "another relying party": lambda device: setattr(device, "rp_id", "example.com"),
    "another user": lambda device: setattr(device, "user_handle", b"user_other"),
    "another key": lambda device: setattr(device, "_key", Device()._key),
    "a copy of an older state": lambda device: setattr(device, "counter", 0),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_device_that_lies_is_refused_and_recorded(server: AdminServer, ann: str, lie: str) -> None:
    device = Device()
    async with logged_in_browser(server) as browser:
        await add_passkey(browser, device)
    async with browser_of(server) as browser:
        assert (await log_in(browser, device)).status_code == 200
        LIES[lie](device)
        reply = await log_in(browser, device)
        assert error_of(reply) == (401, "invalid_credentials")
        unknown = await log_in(browser, Device())
        assert unknown.json()["error"]["message"] == reply.json()["error"]["message"]
    await server.services.logins.stop()
    assert (await audit_events(server))[0] == "login.failed"


@pytest.mark.parametrize("lie", ["an unverified user", "a page of another site", "another relying party"])
async def test_no_passkey_is_added_that_could_not_log_in(server: AdminServer, ann: str, lie: str) -> None:
    device = Device()
    LIES[lie](device)
    async with logged_in_browser(server) as browser:
        asked = await post_for(browser, "/passkeys", PROOF)
        assert error_of(await browser.post("/passkeys/confirm", json=device.make(asked))) == (400, "invalid_passkey")
        for attestation in ("", "oA==", "/////w=="):
            body = device.make(asked) | {"attestation": attestation}
            assert error_of(await browser.post("/passkeys/confirm", json=body)) == (400, "invalid_passkey")


async def test_adding_and_removing_a_passkey_needs_the_password_and_the_code(server: AdminServer, ann: str) -> None:
    async with logged_in_browser(server) as browser, logged_in_browser(server) as elsewhere:
        made = await add_passkey(browser, Device())
        secret = base64.b32decode((await post_for(browser, "/totp", PROOF))["secret"])
        step = int(time.time()) // 30
        await post_for(browser, "/totp/confirm", {"code": code_at(secret, step)})
        for path in ("/passkeys", f"/passkeys/{made['id']}/remove"):
            assert error_of(await browser.post(path, json={"password": "wrong"})) == (401, "invalid_credentials")
            assert error_of(await browser.post(path, json=PROOF)) == (401, "totp_required")
        assert error_of(await elsewhere.get("/passkeys"))[0] == 401, "the authenticator ended other logins"
        renamed = await post_for(browser, f"/passkeys/{made['id']}", {"name": "old laptop"})
        assert renamed["name"] == "old laptop"
        proof = PROOF | {"code": code_at(secret, step + 1)}
        assert (await post_for(browser, f"/passkeys/{made['id']}/remove", proof))["deleted"]
        assert (await browser.get("/passkeys")).json()["data"] == []
    found = await audit_events(server)
    assert found.index("user.passkey_removed") < found.index("user.passkey_renamed") < found.index("user.passkey_added")


async def test_a_person_neither_lists_nor_changes_the_passkeys_of_others(server: AdminServer, ann: str) -> None:
    await server.user("bob@example.com", "admin")
    async with logged_in_browser(server) as browser, logged_in_browser(server, "bob@example.com") as bob:
        made = await add_passkey(browser, Device())
        for path, body in ((f"/passkeys/{made['id']}", {"name": "x"}), (f"/passkeys/{made['id']}/remove", PROOF)):
            assert (await bob.post(path, json=body)).status_code == 404
        assert (await bob.get("/passkeys")).json()["data"] == []
        organization = f"{server.url}/v1/organization/users/{ann}/passkeys"
        assert [each["id"] for each in (await bob.get(organization)).json()["data"]] == [made["id"]]
        assert (await bob.delete(f"{organization}/{made['id']}")).status_code == 403, "an owner's, of an admin"
        bobs = (await add_passkey(bob, Device()))["id"]
        assert (await bob.post(f"/passkeys/{bobs}", json={"name": "mine"})).status_code == 200
        assert (await browser.delete(f"{organization}/{bobs}")).status_code == 404, "it is another user's"


async def test_an_operator_removes_a_lost_passkey_and_a_reset_removes_all_passkeys(
    server: AdminServer, ann: str
) -> None:
    device, second = Device(), Device()
    async with logged_in_browser(server) as browser, server.client(server.operator_key) as operator:
        made = await add_passkey(browser, device)
        assert (await operator.delete(f"/users/{ann}/passkeys/{made['id']}")).status_code == 200
        assert (await browser.get("/passkeys")).status_code == 401, "logins end with it"
    async with browser_of(server) as stranger, logged_in_browser(server) as browser:
        assert (await log_in(stranger, device)).status_code == 401
        await add_passkey(browser, second)
        assert (await log_in(stranger, second)).status_code == 200
        async with server.client(server.operator_key) as operator:
            await operator.post(f"/users/{ann}/reset", json={"password": "another horse battery"})
        assert (await log_in(stranger, second)).status_code == 401


async def test_a_removed_users_passkeys_are_gone(server: AdminServer, database: Database) -> None:
    user = (await server.user(EMAIL, "viewer"))["id"]
    device = Device()
    async with logged_in_browser(server) as browser:
        await add_passkey(browser, device)
    async with server.client(server.operator_key) as operator, browser_of(server) as browser:
        assert (await operator.delete(f"/users/{user}")).status_code == 200
        assert (await log_in(browser, device)).status_code == 401
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM passkeys") == 0


async def test_a_user_has_a_bounded_number_and_no_device_is_added_twice(server: AdminServer, ann: str) -> None:
    device = Device()
    async with logged_in_browser(server) as browser:
        await add_passkey(browser, device)
        asked = await post_for(browser, "/passkeys", PROOF)
        assert asked["existing"] == [base64.b64encode(device.id).decode()]
        assert error_of(await browser.post("/passkeys/confirm", json=device.make(asked))) == (409, "passkey_exists")
        for number in range(1, MAX_PASSKEYS):
            await add_passkey(browser, Device(), f"device {number}")
        assert error_of(await browser.post("/passkeys", json=PROOF)) == (409, "too_many_passkeys")


async def test_a_passkey_counts_as_the_required_second_factor(database: Database, tmp_path: Path) -> None:
    device = Device()
    async with serve_admin(database, tmp_path, require_totp="everybody") as server:
        await server.user(EMAIL, "owner")
        projects = f"{server.url}/v1/organization/projects"
        async with logged_in_browser(server) as browser:
            assert error_of(await browser.get(projects)) == (403, "totp_setup_required")
            await add_passkey(browser, device)
            assert (await browser.get(projects)).status_code == 200, "it was shown in this very login"
        async with logged_in_browser(server) as thief:  # who knows the password alone
            assert error_of(await thief.get(projects)) == (403, "totp_setup_required")
            for path in ("/totp", "/passkeys"):
                assert error_of(await thief.post(path, json=PROOF)) == (403, "passkey_required")
            theirs = (await thief.get("/passkeys")).json()["data"][0]["id"]
            for path, body in ((f"/passkeys/{theirs}/remove", PROOF), (f"/passkeys/{theirs}", {"name": "mine"})):
                assert error_of(await thief.post(path, json=body)) == (403, "passkey_required")
        async with browser_of(server) as browser:
            assert (await log_in(browser, device)).status_code == 200
            session = (await browser.get("/session")).json()
            browser.headers["x-csrf-token"] = session["csrf_token"]
            assert (session["must_set_up_totp"], (await browser.get(projects)).status_code) == (False, 200)
            mine = (await browser.get("/passkeys")).json()["data"][0]["id"]
            assert (await browser.post(f"/passkeys/{mine}/remove", json=PROOF)).status_code == 200
            assert error_of(await browser.get(projects)) == (403, "totp_setup_required"), "no factor is left"


NEW_PARTY = RelyingParty("llm.example.org", "https://llm.example.org")


async def test_a_new_host_name_locks_out_users_whose_only_second_factor_is_a_passkey_and_says_so(
    database: Database, tmp_path: Path
) -> None:
    device = Device()
    async with serve_admin(database, tmp_path, require_totp="owners") as server:
        ann = (await server.user(EMAIL, "owner"))["id"]
        await server.user("bob@example.com", "viewer")
        async with logged_in_browser(server) as browser:
            await add_passkey(browser, device)
            (shown,) = (await browser.get("/passkeys")).json()["data"]
            assert (shown["host"], shown["is_usable"]) == (PARTY.id, True)
        assert await locked_out(server) == []
    async with serve_admin(database, tmp_path, require_totp="owners", party=NEW_PARTY) as server:
        assert await locked_out(server) == [EMAIL]
        async with logged_in_browser(server) as browser:
            session = (await browser.get("/session")).json()
            assert (session["has_passkey"], session["has_passkey_here"], session["needs_second_factor"]) == (
                True,
                False,
                True,
            )
            (shown,) = (await browser.get("/passkeys")).json()["data"]
            assert (shown["host"], shown["is_usable"]) == (PARTY.id, False)
            for path in ("/totp", "/passkeys"):  # a password alone must not be enough, whatever the operator changes
                assert error_of(await browser.post(path, json=PROOF)) == (403, "passkeys_elsewhere")
        async with server.client(server.operator_key) as operator:  # the cure that the start tells
            url = f"/users/{ann}"
            assert (await operator.get(url)).json()["is_locked_out"]
            reset = await operator.post(f"{url}/reset", json={"password": PASSWORD})
            assert (reset.status_code, reset.json()["is_locked_out"]) == (200, False)
        assert await locked_out(server) == []
        async with logged_in_browser(server) as browser:
            other = Device()
            other.origin, other.rp_id = NEW_PARTY.origin, NEW_PARTY.id
            await add_passkey(browser, other)
            assert (await browser.get(f"{server.url}/v1/organization/projects")).status_code == 200


async def test_a_passkey_stored_without_a_host_gets_its_host_when_it_is_used(
    database: Database, tmp_path: Path
) -> None:
    device = Device()
    async with serve_admin(database, tmp_path, require_totp="everybody") as server:
        await server.user(EMAIL, "owner")
        async with logged_in_browser(server) as browser:
            await add_passkey(browser, device)
        async with database.acquire() as conn:
            await conn.execute("UPDATE passkeys SET rp_id = NULL")
        assert await locked_out(server) == [], "it may be one of this very host"
        async with browser_of(server) as browser:
            assert (await log_in(browser, device)).status_code == 200
            (shown,) = (await browser.get("/passkeys")).json()["data"]
            assert shown["host"] == PARTY.id


async def locked_out(server: AdminServer) -> list[str]:
    """Return the addresses of the users who are locked out."""
    async with server.client(server.operator_key) as operator:
        users = (await operator.get("/users")).json()["data"]
    return [user["email"] for user in users if user["is_locked_out"]]


def test_the_notice_names_people_hosts_and_the_cure() -> None:
    people = [LockedOutUser(f"user_{number}", f"p{number}@example.com", PARTY.id) for number in range(7)]
    notice = locked_out_notice(people, NEW_PARTY.id)
    for word in ("p0@example.com", "2 more", PARTY.id, NEW_PARTY.id, "LORIKEET_PUBLIC_URL", "lorikeet user reset"):
        assert word in notice


async def test_another_sites_page_asks_for_no_passkey(server: AdminServer) -> None:
    async with browser_of(server) as browser:
        for path in ("/login/passkey", "/login/passkey/confirm"):
            reply = await browser.post(path, json={}, headers={"sec-fetch-site": "cross-site"})
            assert error_of(reply) == (403, "csrf")


async def test_wrong_passkey_answers_count_like_wrong_passwords(database: Database, tmp_path: Path) -> None:
    async with serve_admin(database, tmp_path, max_failed_keys=3) as server, browser_of(server) as browser:
        assert [(await log_in(browser, Device())).status_code for _ in range(4)] == [401, 401, 401, 429]
