"""Idempotency keys of requests that fail or are cut off, and of replies that cannot be stored at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from litestar import Request, post
from litestar.response.base import ASGIResponse
from prometheus_client import CollectorRegistry, Counter

from gateway.content.idempotency import Execution, Idempotency, Reply
from gateway.content.writes import WAIT_S, Writes
from gateway.db.content.idempotency import Slot
from gateway.db.pool import Database
from gateway.domain.errors import BackendFailed, Overloaded
from gateway.http.bodies import Bodies
from gateway.http.caller import Caller, provide_caller
from gateway.http.envelope import Application
from gateway.http.errors import exception_handlers
from gateway.http.request.call import Call, call_of
from gateway.observability.metrics import Metrics
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.recorded import RecordedReply, never_disconnected
from gateway.support.cipher import Cipher
from gateway.tenancy.authenticate import Authenticator
from tests.gateway.limits.fleet import Key
from tests.patience import PATIENCE_S

Answer = Callable[[int], ASGIResponse]


class Route:
    """A fake idempotent route.

    answer: returns the reply to a run, given how many runs there have been. num_admitted: the number of a run's prompts
    that engines admit.
    """

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self.runs = 0
        self.num_admitted = 1
        self.answer: Answer = lambda run: ASGIResponse(body=f"{run}")
        self.lost = Counter("lost", "x", ["kind"], registry=CollectorRegistry())
        self.writes = Writes(self.lost)
        self.idempotency = Idempotency(database, cipher, self.writes, wait_s=1.0)
        self.database = database

    def app(self) -> Application:
        @post("/run", status_code=200)
        @idempotent(self.idempotency, Bodies())
        async def run(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
            self.runs += 1
            call_of(request.scope).num_admitted = self.num_admitted
            return self.answer(self.runs)

        return Application(
            metrics=Metrics(CollectorRegistry()),
            route_handlers=[run],
            dependencies={"caller": provide_caller(Authenticator(self.database))},
            exception_handlers=exception_handlers(),
            openapi_config=None,
            logging_config=None,
        )


@pytest.fixture
def route(tables: Database, cipher: Cipher) -> Route:
    return Route(tables, cipher)


@pytest.fixture
async def client(route: Route, tenant: Key) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(route.app(), raise_app_exceptions=False)
    headers = tenant.headers | {"idempotency-key": "one"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        yield client


def raising(error: Exception) -> Answer:
    def answer(run: int) -> ASGIResponse:
        raise error

    return answer


@pytest.mark.parametrize("error", [BackendFailed("The engine died."), ZeroDivisionError()])
async def test_a_request_that_failed_after_it_ran_is_not_run_again(
    route: Route, client: httpx.AsyncClient, error: Exception
) -> None:
    route.answer = raising(error)
    first, second = [await client.post("/run") for _ in range(2)]
    assert route.runs == 1
    assert first.status_code == second.status_code >= 500
    assert first.content == second.content
    assert first.headers["x-should-retry"] == second.headers["x-should-retry"] == "false"
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("num_admitted", "num_runs"), [(0, 2), (1, 2), (2, 1)])
async def test_a_refused_request_may_run_again_unless_an_engine_may_have_worked_on_another_prompt(
    route: Route, client: httpx.AsyncClient, num_admitted: int, num_runs: int
) -> None:
    route.num_admitted, route.answer = num_admitted, raising(Overloaded("The queue is full."))
    replies = [await client.post("/run") for _ in range(2)]
    assert route.runs == num_runs
    assert {reply.status_code for reply in replies} == {503}
    assert ("x-should-retry" in replies[0].headers) is (num_runs == 1)


async def test_a_stream_that_is_cut_off_is_lost(route: Route, client: httpx.AsyncClient) -> None:
    class CutOff(ASGIResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise asyncio.CancelledError

    route.answer = lambda run: CutOff()
    with pytest.raises(asyncio.CancelledError):
        await client.post("/run")
    await route.writes.stop()
    reply = await client.post("/run")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "idempotency_reply_lost")
    assert route.runs == 1


class ReplyInParts(ASGIResponse):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": part, "more_body": part != b""})


async def send_to_silent_client(route: Route, slot: Slot) -> asyncio.Task[None]:
    """Run a request whose client does not read; return the task that sends the reply, once the reply is complete."""

    async def unread(message: Any) -> None:
        await asyncio.Event().wait()

    execution = await route.idempotency.begin(slot, b"f", "req_first")
    assert isinstance(execution, Execution)
    scope: Any = {"state": {"call": Call("req_first", 0)}}
    sending = asyncio.create_task(RecordedReply(ReplyInParts(), execution)(scope, never_disconnected, unread))
    await execution.ended.wait()
    return sending


async def test_a_client_that_does_not_read_does_not_delay_a_replay(route: Route, tenant: Key) -> None:
    slot = Slot(tenant.project_id, b"k" * 32)
    sending = await send_to_silent_client(route, slot)
    reply = await route.idempotency.begin(slot, b"f", "req_second")
    assert isinstance(reply, Reply)
    assert (reply.body, sending.done()) == (b"ab", False)
    sending.cancel()


async def test_bytes_of_unread_replies_are_counted_until_the_clients_are_gone(route: Route, tenant: Key) -> None:
    unread = [await send_to_silent_client(route, Slot(tenant.project_id, bytes([n]) * 32)) for n in range(3)]
    assert route.idempotency.num_held_bytes == 3 * len(b"ab")
    for sending in unread:
        sending.cancel()
    await asyncio.wait(unread)
    assert route.idempotency.num_held_bytes == 0


async def test_a_database_that_goes_while_it_runs_neither_fails_the_reply_nor_holds_it_up(
    route: Route, client: httpx.AsyncClient, tenant: Key, tables: Database
) -> None:
    async with tables.acquire() as conn:
        # The row of the request is locked, so that its reply cannot be written down.
        async def lock() -> None:
            await conn.execute("BEGIN")
            await conn.execute("SELECT * FROM idempotency_keys WHERE project_id = $1 FOR UPDATE", tenant.project_id)

        class Slow(ASGIResponse):
            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                await lock()
                await super().__call__(scope, receive, send)

        route.answer = lambda run: Slow(body="late")
        started_s = asyncio.get_running_loop().time()
        first = await client.post("/run")
        took_s = asyncio.get_running_loop().time() - started_s
        assert (first.status_code, first.content) == (200, b"late")
        assert WAIT_S <= took_s < PATIENCE_S
        await conn.execute("ROLLBACK")
    second = await client.post("/run")
    assert (second.content, second.headers["idempotent-replayed"]) == (b"late", "true")
    assert route.runs == 1


async def test_a_write_is_tried_again_until_it_is_done_or_too_much_waits() -> None:
    lost = Counter("lost", "x", ["kind"], registry=CollectorRegistry())
    writes, tries = Writes(lost, max_bytes=100), 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError

    await writes.begin("reply", 100, work)
    assert tries == 3
    blocked = asyncio.Event()
    waiting = writes.begin("reply", 60, blocked.wait)
    await asyncio.sleep(0)
    await writes.begin("chat", 60, work)  # no room
    assert tries == 3
    assert lost.labels("chat")._value.get() == 1
    blocked.set()
    await waiting
    await writes.begin("chat", 60, work)
    assert tries == 4
