"""Guessing at a password slows down the guesser alone: nobody keeps a person out of an account by naming it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.db.organization import logins
from gateway.db.pool import Database
from gateway.domain.errors import TooManyAttempts
from gateway.domain.tenancy.addresses import parse_network
from gateway.tenancy.throttle import FREE_FAILURES, FREE_FROM_STRANGERS, MAX_WAITING, PAUSE_S, Paused, Throttle, unlock
from tests.gateway.admin_server import PASSWORD, AdminServer, serve_admin
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

ANN, UNKNOWN = "ann@example.com", "nobody@example.com"
HOME, ATTACKER, ELSEWHERE = "192.0.2.7", "198.51.100.1", "203.0.113.9"
LOGIN = "/admin/v1/login"


@pytest.fixture
async def server(database: Database, tmp_path: Path) -> AsyncIterator[AdminServer]:
    """Give a server behind a proxy that names the address of each client."""
    async with serve_admin(database, tmp_path, trusted_proxies=(parse_network("127.0.0.1"),)) as server:
        await server.user(ANN, "owner")
        yield server


@asynccontextmanager
async def client_from(server: AdminServer, address: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"x-forwarded-for": address}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


async def log_in(client: httpx.AsyncClient, password: str = PASSWORD, email: str = ANN) -> int:
    return (await client.post(LOGIN, json={"email": email, "password": password})).status_code


async def guess_until_locked(client: httpx.AsyncClient, database: Database, email: str = ANN) -> None:
    """Guess until a lock begins, and lengthen it by ten minutes, so that no slow machine outlasts it."""
    for _ in range(FREE_FAILURES + 1):
        assert await log_in(client, "wrong", email) == 401
    async with database.acquire() as conn:
        assert await conn.execute(_LENGTHEN) == "UPDATE 1"


_LENGTHEN = """
    UPDATE login_failures SET locked_until = locked_until + interval '10 minutes'
    WHERE locked_until BETWEEN failed_at + interval '0.9 s' AND failed_at + interval '9 minutes'
"""


async def test_a_network_that_guesses_is_locked_out_and_its_victim_is_not(
    server: AdminServer, database: Database
) -> None:
    async with client_from(server, ATTACKER) as attacker, client_from(server, HOME) as ann:
        await guess_until_locked(attacker, database)
        assert await log_in(attacker, "wrong") == 429
        assert await log_in(attacker) == 429, "not even the right password is looked at from there"
        assert await log_in(ann) == 200


async def test_a_device_that_logged_in_before_passes_while_its_own_network_is_locked(
    server: AdminServer, database: Database
) -> None:
    async with client_from(server, HOME) as ann, client_from(server, HOME) as neighbour:
        assert await log_in(ann) == 200
        login, device = ann.cookies["lorikeet_login"], ann.cookies["lorikeet_device"]
        assert login != device
        session = (await ann.get("/admin/v1/session")).json()
        left = await ann.post("/admin/v1/logout", headers={"x-csrf-token": session["csrf_token"]})
        assert left.status_code == 200 and "lorikeet_device" in ann.cookies
        await guess_until_locked(neighbour, database)
        assert await log_in(neighbour) == 429
        assert await log_in(ann) == 200
        # The device is no way to guess without end, and no login either.
        await guess_until_locked(ann, database)
        assert await log_in(ann, "wrong") == 429
        ann.cookies.delete("lorikeet_login")
        assert (await ann.get("/admin/v1/session")).status_code == 401


async def test_a_device_is_known_for_its_own_person_alone_and_until_somebody_ends_its_login(
    server: AdminServer, database: Database
) -> None:
    await server.user("bob@example.com", "viewer")
    async with client_from(server, HOME) as bob, client_from(server, HOME) as neighbour:
        assert await log_in(bob, email="bob@example.com") == 200
        await guess_until_locked(neighbour, database)
        assert await log_in(bob, email=ANN) == 429
        await guess_until_locked(neighbour, database, "bob@example.com")
        session = (await bob.get("/admin/v1/session")).json()
        changes = {"x-csrf-token": session["csrf_token"]}
        ended = await bob.delete(f"/admin/v1/logins/{session['id']}", headers=changes)
        assert ended.status_code == 200
        assert await log_in(bob, email="bob@example.com") == 429


async def _guess(throttle: Throttle, database: Database, email: str, address: str) -> bool:
    """Return whether an attempt from an address may try the password."""
    async with database.acquire() as conn:
        try:
            await throttle.count_attempt(conn, email, address, None)
        except TooManyAttempts:
            return False
        return True


@pytest.mark.parametrize("email", [ANN, UNKNOWN])
async def test_guesses_from_many_networks_together_are_bounded_for_any_address(
    server: AdminServer, database: Database, email: str
) -> None:
    throttle = Throttle()
    networks = [f"10.0.{number // 200}.{number % 200}" for number in range(FREE_FROM_STRANGERS + 20)]
    looked_at = [await _guess(throttle, database, email, each) for each in networks]
    assert looked_at.count(True) == FREE_FROM_STRANGERS + 1
    async with database.acquire() as conn:
        assert 0 < await logins.locked_for_s(conn, _identity_of_strangers(email)) <= PAUSE_S
        await unlock(conn, email)
    assert await _guess(throttle, database, email, ELSEWHERE), "an operator may end it"


async def test_a_network_of_earlier_logins_passes_where_strangers_wait_for_their_turn(
    server: AdminServer, database: Database
) -> None:
    async with (
        client_from(server, HOME) as ann,
        client_from(server, HOME) as again,
        client_from(server, ELSEWHERE) as stranger,
    ):
        assert await log_in(ann) == 200
        async with database.acquire() as conn:
            person = hashlib.sha256(f"person\0{ANN}".encode()).digest()
            await logins.count_failure(conn, _identity_of_strangers(ANN), person)
            await logins.lock_identity(conn, _identity_of_strangers(ANN), 1.5)
            started_s = time.monotonic()
            assert await log_in(stranger) == 200, "it is not refused"
            assert time.monotonic() - started_s >= 1.4, "but waits for its turn"
            await logins.count_failure(conn, _identity_of_strangers(ANN), person)
            await logins.lock_identity(conn, _identity_of_strangers(ANN), 3600)
        assert await log_in(again) == 200


async def test_each_network_has_one_waiting_login_and_all_networks_together_a_bounded_number() -> None:
    throttle, paused = Throttle(), Paused("wait", retry_after_s=3600)
    addresses = [f"10.1.0.{number}" for number in range(MAX_WAITING)]
    waiting = [asyncio.create_task(throttle.wait_turn(address, paused)) for address in addresses]
    try:

        async def all_wait() -> bool | None:
            return len(throttle._waiting) == MAX_WAITING or None

        await until(all_wait, "not every network waits")
        for address in (addresses[0], ELSEWHERE):
            with pytest.raises(Paused):
                await throttle.wait_turn(address, paused)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert not throttle._waiting


def _identity_of_strangers(email: str) -> bytes:
    return hashlib.sha256(f"strangers\0{email}".encode()).digest()
