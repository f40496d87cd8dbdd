"""People log in with a password and an optional code; guessing, replaying and forging fail."""

from __future__ import annotations

import asyncio
import base64
import datetime
import time
from pathlib import Path
from typing import Literal

import httpx
import pytest

from gateway.db.pool import Database
from gateway.domain.tenancy.permissions import ALL, project_role_permissions
from gateway.domain.tenancy.recovery import NUM_CODES
from gateway.domain.tenancy.totp import code_at
from gateway.tenancy.throttle import FREE_FAILURES
from tests.gateway.admin_server import PASSWORD, AdminServer, serve_admin
from tests.patience import PATIENCE_S

EMAIL = "ann@example.com"


@pytest.fixture
async def ann(server: AdminServer) -> str:
    """Return the id of an owner who can log in."""
    return str((await server.user(EMAIL, "owner"))["id"])


async def log_in(server: AdminServer, **fields: object) -> httpx.Response:
    body = {"email": EMAIL, "password": PASSWORD} | fields
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        return await client.post(f"{server.url}/admin/v1/login", json=body)


def code_of(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json().get("error", {}).get("code")


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"content-type": "text/plain"}])
async def test_another_sites_page_logs_nobody_in(server: AdminServer, ann: str, headers: dict[str, str]) -> None:
    body = f'{{"email": "{EMAIL}", "password": "{PASSWORD}"}}'
    sent = {"content-type": "application/json"} | headers
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        reply = await client.post(f"{server.url}/admin/v1/login", content=body, headers=sent)
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "csrf")
    assert "set-cookie" not in reply.headers


async def test_a_login_opens_the_admin_api_until_it_ends(server: AdminServer, ann: str) -> None:
    reply = await log_in(server)
    assert (reply.status_code, reply.json()["user_id"], reply.json()["role"]) == (200, ann, "owner")
    cookie = reply.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert "Secure" not in cookie, "this login came over plain HTTP"
    token = reply.cookies["lorikeet_login"]
    assert token not in reply.text

    async with server.person(EMAIL) as browser:
        assert (await browser.get("/projects")).status_code == 200
        session = (await browser.get(f"{server.url}/admin/v1/session")).json()
        assert session["csrf_token"] == browser.headers["x-csrf-token"]
        ended = await browser.post(f"{server.url}/admin/v1/logout")
        assert (ended.status_code, ended.json()["ids"]) == (200, [session["id"]])
        browser.cookies.clear()
        browser.cookies.set("lorikeet_login", token)  # the other login
        assert (await browser.get("/projects")).status_code == 200
    async with server.client() as stale:
        stale.cookies.set("lorikeet_login", "x" * 43)
        assert code_of(await stale.get("/projects")) == (401, "login_ended")


async def test_a_new_login_ends_the_one_that_the_same_browser_had(server: AdminServer, ann: str) -> None:
    body = {"email": EMAIL, "password": PASSWORD}
    async with server.person(EMAIL) as browser, server.person(EMAIL) as elsewhere:
        first = browser.cookies["lorikeet_login"]
        assert (
            await browser.post(f"{server.url}/admin/v1/login", json=body | {"password": "wrong"})
        ).status_code == 401
        assert (await browser.get("/projects")).status_code == 200, "a guess ends nothing"
        assert (await browser.post(f"{server.url}/admin/v1/login", json=body)).status_code == 200
        assert (await browser.get("/projects")).status_code == 200
        assert (await elsewhere.get("/projects")).status_code == 200
        browser.cookies.clear()
        browser.cookies.set("lorikeet_login", first)
        assert code_of(await browser.get("/projects")) == (401, "login_ended")


async def test_a_session_says_what_its_person_may_do_and_where(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as browser:
        owner = (await browser.get(f"{server.url}/admin/v1/session")).json()
        project = (await browser.post("/projects", json={"name": "acme"})).json()["id"]
        await browser.post("/projects", json={"name": "globex"})
        bob = (await server.user("bob@example.com", None))["id"]
        await browser.post(f"/projects/{project}/users", json={"user_id": bob, "role": "viewer"})
    assert (owner["permissions"], owner["projects"]) == (sorted(ALL), [])
    assert (owner["organization"]["name"], owner["has_totp"]) == ("default", False)
    assert (owner["model"], owner["imports_from_sources"]) == ("tiny", True)
    async with server.person("bob@example.com") as browser:
        member = (await browser.get(f"{server.url}/admin/v1/session")).json()
    permissions = sorted(project_role_permissions("viewer"))
    assert (member["model"], member["permissions"]) == ("tiny", [])
    assert member["projects"] == [{"id": project, "name": "acme", "role": "viewer", "permissions": permissions}]


async def test_a_browser_without_a_cookie_learns_so_without_a_refusal(server: AdminServer, ann: str) -> None:
    token = (await log_in(server)).cookies["lorikeet_login"]
    for cookies, has_cookie in (({}, False), ({"lorikeet_login": token}, True), ({"lorikeet_login": "ended"}, True)):
        async with httpx.AsyncClient(cookies=cookies, timeout=PATIENCE_S) as client:
            reply = await client.get(f"{server.url}/admin/v1/login")
        assert (reply.status_code, reply.json()["has_cookie"]) == (200, has_cookie)


async def test_the_token_is_stored_hashed(server: AdminServer, ann: str, database: Database) -> None:
    token = (await log_in(server)).cookies["lorikeet_login"]
    async with database.acquire() as conn:
        rows = await conn.fetch("SELECT row_to_json(logins)::text AS row FROM logins")
    assert len(rows) == 1 and token not in rows[0]["row"]


async def test_over_https_the_cookie_is_secure_and_strangers_cannot_claim_it(
    database: Database, tmp_path: Path
) -> None:
    from gateway.domain.tenancy.addresses import parse_network

    headers = {"x-forwarded-proto": "https", "x-forwarded-for": "198.51.100.1"}
    body = {"email": EMAIL, "password": PASSWORD}
    for trusted, secure, address in (((parse_network("127.0.0.1"),), True, "198.51.100.1"), ((), False, "127.0.0.1")):
        async with serve_admin(database, tmp_path / address, trusted_proxies=trusted) as server:
            if trusted:
                await server.user(EMAIL, "owner")
            async with httpx.AsyncClient(headers=headers, timeout=PATIENCE_S) as client:
                reply = await client.post(f"{server.url}/admin/v1/login", json=body)
            assert ("Secure" in reply.headers["set-cookie"]) == secure
            prefix = "__Host-" if secure else ""
            assert list(reply.cookies) == [f"{prefix}lorikeet_login", f"{prefix}lorikeet_device"]
            assert reply.headers["set-cookie"].count("HttpOnly") == 2
            async with server.client(server.operator_key) as operator:
                (newest, *_) = (await operator.get("/audit_logs", params={"limit": 1})).json()["data"]
            assert newest["actor"]["session"]["ip_address"] == address


async def test_with_a_cookie_every_change_needs_the_csrf_token(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as browser:
        good = browser.headers.pop("x-csrf-token")
        for wrong in (None, "", good[:-1], good.upper(), "0" * 64):
            headers = {} if wrong is None else {"x-csrf-token": wrong}
            for method, path in [("POST", "/projects"), ("DELETE", "/users/user_x"), ("POST", "/users")]:
                reply = await browser.request(method, path, headers=headers, json={"name": "forged"})
                assert code_of(reply) == (403, "csrf"), (wrong, path)
        async with server.person(EMAIL) as other:
            reply = await browser.post(
                "/projects", json={"name": "x"}, headers={"x-csrf-token": other.headers["x-csrf-token"]}
            )
        assert code_of(reply) == (403, "csrf"), "another login's token"
        assert (await browser.get("/projects")).json()["data"] == []
        assert (await browser.post("/projects", json={"name": "x"}, headers={"x-csrf-token": good})).status_code == 200


async def test_a_wrong_password_and_an_unknown_address_look_alike(server: AdminServer, ann: str) -> None:
    wrong = await log_in(server, password="wrong")
    unknown = await log_in(server, email="nobody@example.com")
    assert code_of(wrong) == (401, "invalid_credentials")
    assert (wrong.status_code, wrong.content) == (unknown.status_code, unknown.content)
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize("email", [EMAIL, "nobody@example.com"])
async def test_guessing_is_locked_out_for_longer_and_longer(server: AdminServer, ann: str, email: str) -> None:
    replies = [await log_in(server, email=email, password="wrong") for _ in range(FREE_FAILURES + 2)]
    assert [reply.status_code for reply in replies] == [401] * (FREE_FAILURES + 1) + [429]
    locked = await log_in(server, email=email)
    assert code_of(locked) == (429, "login_locked"), "not even the right password is looked at"
    assert 1 <= int(locked.headers["retry-after"]) <= 2


async def test_parallel_guesses_do_not_outrun_the_lockout(server: AdminServer, ann: str) -> None:
    replies = await asyncio.gather(*(log_in(server, password=f"guess {number}") for number in range(20)))
    statuses = [reply.status_code for reply in replies]
    assert statuses.count(401) == FREE_FAILURES + 1
    assert statuses.count(429) == 20 - FREE_FAILURES - 1


async def test_a_person_sees_and_ends_their_other_logins(server: AdminServer, ann: str) -> None:
    await server.user("bob@example.com", "viewer")
    async with (
        server.person(EMAIL) as first,
        server.person(EMAIL) as second,
        server.person("bob@example.com") as bob,
    ):
        listed = (await first.get(f"{server.url}/admin/v1/logins")).json()["data"]
        assert [login["current"] for login in listed] == [True, False]
        reply = await bob.delete(f"{server.url}/admin/v1/logins/{listed[1]['id']}")
        assert reply.status_code == 404
        assert (await second.get("/projects")).status_code == 200
        assert (await first.delete(f"{server.url}/admin/v1/logins/{listed[1]['id']}")).status_code == 200
        assert code_of(await second.get("/projects")) == (401, "login_ended")
        assert (await first.get("/projects")).status_code == 200

        bobs = (await bob.get(f"{server.url}/admin/v1/session")).json()["user_id"]
        assert len((await first.get(f"/users/{bobs}/logins")).json()["data"]) == 1
        assert code_of(await bob.delete(f"/users/{ann}/logins")) == (403, "insufficient_permissions")
        assert (await first.delete(f"/users/{bobs}/logins")).status_code == 200
        assert code_of(await bob.get("/projects")) == (401, "login_ended")


async def test_a_new_password_ends_all_other_logins(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as first, server.person(EMAIL) as second:
        change = {"password": "wrong", "new_password": "another good passphrase"}
        url = f"{server.url}/admin/v1/password"
        assert code_of(await first.post(url, json=change)) == (401, "invalid_credentials")
        short = await first.post(url, json={"password": PASSWORD, "new_password": "short"})
        assert (short.status_code, short.json()["error"]["param"]) == (400, "new_password")
        assert (await first.post(url, json=change | {"password": PASSWORD})).status_code == 200
        assert (await first.get("/projects")).status_code == 200
        assert (await second.get("/projects")).status_code == 401
    assert (await log_in(server)).status_code == 401
    assert (await log_in(server, password="another good passphrase")).status_code == 200


async def test_logins_need_a_code_once_an_authenticator_is_confirmed_and_each_code_is_good_once(
    server: AdminServer, ann: str
) -> None:
    async with server.person(EMAIL) as browser:
        url = f"{server.url}/admin/v1/totp"
        begun = (await browser.post(url, json={"password": PASSWORD})).json()
        secret = base64.b32decode(begun["secret"])
        assert (await log_in(server)).status_code == 200, "it does not count before it is confirmed"
        now = int(time.time()) // 30
        confirmed = await browser.post(f"{url}/confirm", json={"code": code_at(secret, now)})
        assert confirmed.status_code == 200
        assert code_of(await browser.post(f"{url}/confirm", json={"code": code_at(secret, now)}))[0] == 401
    assert code_of(await log_in(server)) == (401, "totp_required")
    assert code_of(await log_in(server, code=code_at(secret, now))) == (401, "invalid_credentials"), "it was used"
    good = code_at(secret, now + 1)
    assert (await log_in(server, code=good)).status_code == 200
    assert code_of(await log_in(server, code=good)) == (401, "invalid_credentials"), "replayed"
    assert code_of(await log_in(server, code=good, password="wrong")) == (401, "invalid_credentials")


async def test_an_authenticator_is_removed_with_a_code_alone(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as browser:
        url = f"{server.url}/admin/v1/totp"
        secret = base64.b32decode((await browser.post(url, json={"password": PASSWORD})).json()["secret"])
        now = int(time.time()) // 30
        await browser.post(f"{url}/confirm", json={"code": code_at(secret, now)})
        body = {"password": PASSWORD}
        assert code_of(await browser.post(f"{url}/remove", json=body)) == (401, "totp_required")
        used = await browser.post(f"{url}/remove", json=body | {"code": code_at(secret, now)})
        assert code_of(used) == (401, "invalid_credentials")
        assert code_of(await log_in(server)) == (401, "totp_required"), "it is still there"
        removed = await browser.post(f"{url}/remove", json=body | {"code": code_at(secret, now + 1)})
        assert removed.status_code == 200
    assert (await log_in(server)).status_code == 200


async def test_a_login_that_nobody_uses_ends(server: AdminServer, ann: str, database: Database) -> None:
    logins = server.services.logins
    async with server.person(EMAIL) as left, server.person(EMAIL) as used:
        ids = [login["id"] for login in (await used.get(f"{server.url}/admin/v1/logins")).json()["data"]]
        logins.idle = datetime.timedelta(minutes=60)
        try:
            await _backdate_last_use(database, ids[0], minutes=61)
            await _backdate_last_use(database, ids[1], minutes=59)
            assert code_of(await left.get("/projects")) == (401, "login_ended")
            assert (await used.get("/projects")).status_code == 200
            async with database.acquire() as conn:
                left_s = await conn.fetchval(
                    "SELECT extract(epoch FROM now() - last_used_at)::float8 FROM logins WHERE id = $1", ids[1]
                )
            assert left_s < 60, "its use counts"
            listed = (await used.get(f"{server.url}/admin/v1/logins")).json()["data"]
            assert [login["id"] for login in listed] == ids[1:]
        finally:
            logins.idle = None


async def _backdate_last_use(database: Database, login_id: str, minutes: int) -> None:
    async with database.acquire() as conn:
        await conn.execute(
            "UPDATE logins SET last_used_at = now() - make_interval(mins => $2) WHERE id = $1", login_id, minutes
        )


async def test_the_reply_to_a_wrong_password_does_not_wait_for_the_audit_log(
    server: AdminServer, ann: str, database: Database
) -> None:
    """Only failures of known addresses are audited; a reply that waited for the log would tell which addresses
    exist."""
    async with database.transaction() as conn:
        assert await conn.execute("UPDATE audit_heads SET sequence = sequence") != "UPDATE 0"
        async with asyncio.timeout(PATIENCE_S):  # what writes the log waits for this transaction
            assert code_of(await log_in(server, password="wrong")) == (401, "invalid_credentials")
    await server.services.logins.stop()
    async with server.client(server.operator_key) as operator:
        (newest, *_) = (await operator.get("/audit_logs", params={"limit": 1})).json()["data"]
    assert (newest["type"], newest["login.failed"]["id"]) == ("login.failed", ann)


async def test_racing_with_one_code_opens_one_login(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as browser:
        url = f"{server.url}/admin/v1/totp"
        secret = base64.b32decode((await browser.post(url, json={"password": PASSWORD})).json()["secret"])
        now = int(time.time()) // 30
        await browser.post(f"{url}/confirm", json={"code": code_at(secret, now)})
    replies = await asyncio.gather(*(log_in(server, code=code_at(secret, now + 1)) for _ in range(4)))
    assert sorted(reply.status_code for reply in replies) == [200, 401, 401, 401]


async def test_an_address_that_guesses_keys_waits_while_known_keys_go_on(database: Database, tmp_path: Path) -> None:
    from gateway.domain.tenancy.keys import new_key

    async with serve_admin(database, tmp_path, max_failed_keys=5) as server:
        async with server.client(server.operator_key) as operator:
            assert (await operator.get("/projects")).status_code == 200
            statuses = []
            for _ in range(8):
                async with server.client(new_key("admin").secret) as guesser:
                    reply = await guesser.get("/projects")
                statuses.append(reply.status_code)
            assert statuses == [401] * 5 + [429] * 3
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            for number in range(5):  # each empties the cache of keys
                assert (await operator.post("/projects", json={"name": f"more {number}"})).status_code == 200
        assert (await log_in(server)).status_code == 429, "passwords count with them"


async def test_a_neighbour_who_guesses_shuts_no_known_login_out(database: Database, tmp_path: Path) -> None:
    async with serve_admin(database, tmp_path, max_failed_keys=3) as server:
        await server.user(EMAIL, "owner")
        async with server.person(EMAIL) as browser:
            assert (await browser.get("/projects")).status_code == 200
            async with server.client() as guesser:
                guesser.cookies.set("lorikeet_login", "x" * 43)
                statuses = [(await guesser.get("/projects")).status_code for _ in range(4)]
            assert statuses == [401] * 3 + [429]
            assert (await browser.get("/projects")).status_code == 200
            assert (await browser.post(f"{server.url}/admin/v1/logout")).status_code == 200
            browser.cookies.clear()
            assert (await browser.get("/projects")).status_code == 401


async def test_a_common_password_is_refused_wherever_one_is_set(server: AdminServer, ann: str) -> None:
    async with server.person(EMAIL) as browser:
        mine = {"password": PASSWORD, "new_password": "Password2026!!"}
        for url, body, param in (
            (f"{server.url}/admin/v1/password", mine, "new_password"),
            ("/users", {"email": "bob@example.com", "password": "Password2026!!"}, "password"),
            (f"/users/{ann}/reset", {"password": "ann@example.com"}, "password"),
        ):
            refused = await browser.post(url, json=body)
            assert code_of(refused) == (400, "common_password")
            assert refused.json()["error"]["param"] == param
    assert (await log_in(server)).status_code == 200


@pytest.mark.parametrize("require_totp", ["owners", "everybody"])
async def test_a_person_who_needs_an_authenticator_can_do_nothing_but_set_one_up(
    database: Database, tmp_path: Path, require_totp: Literal["owners", "everybody"]
) -> None:
    async with serve_admin(database, tmp_path, require_totp=require_totp) as server:
        await server.user(EMAIL, "owner")
        async with server.client(server.operator_key) as operator:
            project = (await operator.post("/projects", json={"name": "acme"})).json()["id"]
            bob = (await server.user("bob@example.com", None))["id"]
            await operator.post(f"/projects/{project}/users", json={"user_id": bob, "role": "admin"})
        session, totp = f"{server.url}/admin/v1/session", f"{server.url}/admin/v1/totp"
        async with server.person("bob@example.com") as browser:
            shown = (await browser.get(session)).json()
            assert (shown["must_set_up_totp"], shown["projects"] == []) == ((require_totp == "everybody"),) * 2
            assert ((await browser.get(f"/projects/{project}")).status_code == 403) == (require_totp == "everybody")
        async with server.person(EMAIL) as browser:
            for method, path in (("GET", "/projects"), ("GET", "/audit_logs"), ("POST", "/projects")):
                refused = await browser.request(method, path, json={"name": "globex"} if method == "POST" else None)
                assert code_of(refused) == (403, "totp_setup_required"), path
            shown = (await browser.get(session)).json()
            assert (shown["must_set_up_totp"], shown["permissions"]) == (True, [])
            secret = base64.b32decode((await browser.post(totp, json={"password": PASSWORD})).json()["secret"])
            assert code_of(await browser.get("/projects")) == (403, "totp_setup_required"), "it is not confirmed yet"
            code = code_at(secret, int(time.time()) // 30)
            assert (await browser.post(f"{totp}/confirm", json={"code": code})).status_code == 200
            assert (await browser.get("/projects")).status_code == 200
            shown = (await browser.get(session)).json()
            assert (shown["must_set_up_totp"], shown["permissions"]) == (False, sorted(ALL))


async def test_a_recovery_code_takes_the_place_of_the_authenticators_once_and_is_stored_hashed(
    server: AdminServer, ann: str, database: Database
) -> None:
    async with server.person(EMAIL) as browser:
        url = f"{server.url}/admin/v1/totp"
        secret = base64.b32decode((await browser.post(url, json={"password": PASSWORD})).json()["secret"])
        confirmed = await browser.post(f"{url}/confirm", json={"code": code_at(secret, int(time.time()) // 30)})
        codes = confirmed.json()["recovery_codes"]
        assert len(set(codes)) == NUM_CODES
        async with database.acquire() as conn:
            row = await conn.fetchval("SELECT row_to_json(users)::text FROM users WHERE id = $1", ann)
            assert not any(code in row or code.replace("-", "") in row for code in codes)
        racing = await asyncio.gather(*(log_in(server, code=codes[0]) for _ in range(3)))
        assert sorted(reply.status_code for reply in racing) == [200, 401, 401]
        assert (await log_in(server, code=codes[1].upper().replace("-", " "))).status_code == 200
        assert code_of(await log_in(server, code=codes[1])) == (401, "invalid_credentials")
        assert code_of(await log_in(server, code="aaaa-aaaa-aaaa")) == (401, "invalid_credentials")
        assert code_of(await log_in(server, code=codes[2], password="wrong")) == (401, "invalid_credentials")
        events = (await browser.get("/audit_logs", params={"limit": 100})).json()["data"]
        used = [event for event in events if event["type"] == "user.recovery_code_used"]
        assert len(used) == 2
        removed = await browser.post(f"{url}/remove", json={"password": PASSWORD, "code": codes[2]})
        assert removed.status_code == 200, "who has lost the authenticator can get rid of it"
        begun = (await browser.post(url, json={"password": PASSWORD})).json()
        secret = base64.b32decode(begun["secret"])
        await browser.post(f"{url}/confirm", json={"code": code_at(secret, int(time.time()) // 30)})
    assert code_of(await log_in(server, code=codes[3])) == (401, "invalid_credentials"), "codes end with it"
