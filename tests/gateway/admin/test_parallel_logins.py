"""Parallel logins neither pass the cap on wrong passwords nor keep other people waiting."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter

import httpx
import pytest
from argon2 import PasswordHasher

from gateway.domain.errors import InvalidCredentials, TooManyAttempts
from gateway.tenancy.failures import FailureCap
from gateway.tenancy.login_queue import MAX_WAITING
from gateway.tenancy.logins import Client, Logins
from gateway.tenancy.passwords import MAX_AT_ONCE, NICENESS, Passwords
from tests.gateway.admin_server import PASSWORD, SECRETS, AdminServer
from tests.patience import PATIENCE_S

CLIENT, OTHER_CLIENT = "192.0.2.1", "198.51.100.1"
MAX_FAILED = 100


class CountingHasher(PasswordHasher):
    """Argon2 with its usual or with cheap costs, which counts the passwords that it verifies."""

    def __init__(self, **costs: int) -> None:
        super().__init__(**costs)
        self.num_checks = 0
        self.niceness: set[int] = set()
        self._lock = threading.Lock()

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # type: ignore[override]
        with self._lock:
            self.num_checks += 1
            self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return bool(super().verify(hash, password))


def client_at(address: str) -> Client:
    return Client(address, "", "req_1", time.monotonic())


async def attempt(logins: Logins, email: str, password: str, address: str) -> str:
    try:
        await logins.log_in(email, password, None, client_at(address))
    except InvalidCredentials:
        return "wrong"
    except TooManyAttempts as error:
        assert error.retry_after_s is not None
        return "refused"
    return "in"


async def test_300_wrong_logins_at_once_leave_another_client_its_login(server: AdminServer) -> None:
    await server.user("ann@example.com", "owner")
    hasher = CountingHasher(time_cost=1, memory_cost=1024, parallelism=1)
    logins = logins_of(server, hasher, FailureCap(MAX_FAILED))
    wrong = [
        asyncio.create_task(attempt(logins, f"person{number}@example.com", "wrong", CLIENT)) for number in range(300)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        assert await attempt(logins, "ann@example.com", PASSWORD, OTHER_CLIENT) == "in"
    num_before = hasher.num_checks - 1
    assert num_before <= MAX_AT_ONCE + MAX_WAITING, "those that were in the line before it"
    outcomes = Counter(await asyncio.gather(*wrong))
    assert outcomes["in"] == 0
    assert outcomes["refused"] > 0
    assert hasher.num_checks <= MAX_FAILED
    assert hasher.niceness == {max(NICENESS, os.nice(0))}, "requests and engines come first"


def logins_of(server: AdminServer, hasher: PasswordHasher, failures: FailureCap) -> Logins:
    return Logins(server.services.database, Passwords(hasher), failures, SECRETS.open)


async def test_parallel_wrong_logins_do_not_outrun_the_cap(server: AdminServer) -> None:
    hasher = CountingHasher(time_cost=1, memory_cost=64, parallelism=1)
    logins = logins_of(server, hasher, FailureCap(7))
    outcomes: Counter[str] = Counter()
    for batch in range(4):
        emails = [f"person{batch}.{number}@example.com" for number in range(5)]
        outcomes.update(await asyncio.gather(*(attempt(logins, email, "wrong", CLIENT) for email in emails)))
    assert outcomes == {"wrong": 7, "refused": 13}
    assert hasher.num_checks == 7


async def test_right_passwords_and_refused_logins_do_not_count_as_failures(server: AdminServer) -> None:
    await server.user("ann@example.com", "owner")
    hasher = CountingHasher(time_cost=1, memory_cost=64, parallelism=1)
    logins = logins_of(server, hasher, FailureCap(6))
    refused = await asyncio.gather(*(attempt(logins, f"p{number}@example.com", "wrong", CLIENT) for number in range(9)))
    assert Counter(refused) == {"wrong": 5, "refused": 4}, "half of the line is one client's"
    for _ in range(3):
        assert await attempt(logins, "ann@example.com", PASSWORD, CLIENT) == "in"
    assert await attempt(logins, "ann@example.com", "wrong", CLIENT) == "wrong"
    assert await attempt(logins, "ann@example.com", PASSWORD, CLIENT) == "refused"


@pytest.mark.parametrize("num_clients", [MAX_AT_ONCE + 8])
async def test_a_bounded_number_of_logins_waits_over_all_clients(server: AdminServer, num_clients: int) -> None:
    hasher = CountingHasher(time_cost=1, memory_cost=64, parallelism=1)
    logins = logins_of(server, hasher, FailureCap(MAX_FAILED))
    outcomes = await asyncio.gather(
        *(attempt(logins, f"p{n}@example.com", "wrong", f"192.0.2.{n}") for n in range(num_clients + 3))
    )
    assert Counter(outcomes) == {"wrong": num_clients, "refused": 3}


async def test_a_large_body_of_a_login_is_refused(server: AdminServer) -> None:
    """Anybody may send a login, so the largest body of a login is far smaller than that of a tenant's request."""
    body = b'{"email":"a@example.com","password":"x","code":[' + b"[]," * 10_000 + b"1]}"
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        reply = await client.post(f"{server.url}/admin/v1/login", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
