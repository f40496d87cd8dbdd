"""The present state as server-sent events: engines each second, traffic every two, and changes as they come.

Data is read once for all streams that show the same. A stream ends with its login, or when its caller's permissions
change: one that is opened anew has the new ones.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request, get
from litestar.response.base import ASGIResponse

from gateway.admin.access import login_token, needs
from gateway.admin.services import AdminServices, Caller, Services
from gateway.admin.traffic.engines import Engine, EngineTenant, ResidentAdapter, named_engines, only_adapters_of
from gateway.backends.snapshot import State
from gateway.db.changes import Change
from gateway.db.ledger.traffic import TrafficQuery, traffic_sums
from gateway.domain.errors import GatewayError
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import projects_with
from gateway.http.shape import shape
from gateway.http.sse import EncodedEvents, in_one_line, open_stream

ENGINES_EVERY_S, TRAFFIC_EVERY_S, CHECK_EVERY_S, HEARTBEAT_EVERY_S = 1.0, 2.0, 5.0, 15.0
TICK_S = 1.0

TOPICS = {
    "adapters": "adapters",
    "adapter_versions": "adapters",
    "adapter_shares": "adapters",
    "model_aliases": "adapters",
    "api_keys": "keys",
    "experiments": "experiments",
    "limits": "limits",
    "organizations": "projects",
    "pools": "pools",
    "price_versions": "prices",
    "project_members": "users",
    "projects": "projects",
    "users": "users",
}
"""The topic of the event that announces a change, by the changed table."""
RIGHTS = frozenset({"api_keys", "logins", "organizations", "project_members", "projects", "users"})
"""The tables that hold rights: after a change in one, streams check whether their callers may still see them."""


class OwnEngine(msgspec.Struct, frozen=True):
    """An engine as a project's people see it: with their own tenants' choices and adapters."""

    id: str
    model: str
    state: State
    since: int
    """Unix seconds at which the state began."""
    tenants: list[EngineTenant]
    """The tenants whose projects the caller may read."""
    resident_adapters: list[ResidentAdapter]
    """The loaded adapters about which the caller may read."""


class EnginesNow(msgspec.Struct, frozen=True):
    """The event `engines`: the state of the engines."""

    data: list[Engine] | list[OwnEngine]


class TrafficNow(msgspec.Struct, frozen=True):
    """The event `traffic`: the ledger's requests of the last `seconds`, one or two minutes.

    Rates per second are these numbers divided by `seconds`.
    """

    seconds: float
    num_requests: int
    num_errors: int
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    errors_per_s: float
    tokens_per_s: float


class Changed(msgspec.Struct, frozen=True):
    """The event `changed`: the topics whose data the client should read again."""

    topics: list[str]


class _Watcher:
    """One live stream. check: tells whether the stream may go on."""

    def __init__(self, services: AdminServices, caller: Actor, check: Callable[[], Awaitable[bool]]) -> None:
        self.caller = caller
        self.owner_id = caller.login_id or caller.id
        self.wake = (woken := asyncio.Event()).set
        self._woken = woken
        self._all = services.watchers
        self._services = services
        self._check = check
        self._topics: set[str] = set()
        self._has_to_check = False

    def changed(self, change: Change | None) -> None:
        """Record a change that the stream may have to announce. None: anything may have changed."""
        if change is None or change.table in RIGHTS:
            self._has_to_check = True
            self.wake()
        if change is None:
            self._topics.update(TOPICS.values())
        elif change.table == "logins":
            pass  # the list of signed-in people is shown nowhere
        elif "organization.read" in self.caller.permissions or change.project_id in self.caller.project_permissions:
            self._topics.add(TOPICS.get(change.table, change.table))
        if self._topics:
            self.wake()

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the stream's events until its caller loses access: first everything, then each topic when it is due."""
        self._all.join(self)
        due = dict.fromkeys(("engines", "traffic", "check", "heartbeat"), 0.0)
        due["check"] = time.monotonic() + CHECK_EVERY_S
        try:
            while not self._all.is_closing:
                now_s = time.monotonic()
                if self._has_to_check or due["check"] <= now_s:
                    self._has_to_check, due["check"] = False, now_s + CHECK_EVERY_S
                    if not await self._check():
                        return
                if due["heartbeat"] <= now_s:
                    due["heartbeat"] = now_s + HEARTBEAT_EVERY_S
                    yield b": here\n\n"
                if self._topics:
                    topics, self._topics = sorted(self._topics), set()
                    yield _event("changed", Changed(topics))
                if due["engines"] <= now_s:
                    due["engines"] = now_s + ENGINES_EVERY_S
                    yield _event("engines", await self._engines())
                if due["traffic"] <= now_s and (projects := projects_with(self.caller, "billing.read")) != []:
                    due["traffic"] = now_s + TRAFFIC_EVERY_S
                    yield _event("traffic", await self._traffic(projects))
                await self._pause()
        finally:
            self._all.leave(self)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._woken.wait()
        except TimeoutError:
            pass
        else:
            await asyncio.sleep(0.05)  # several changes of one moment are sent together
        self._woken.clear()

    async def _engines(self) -> EnginesNow:
        organization_id = self.caller.organization_id

        async def read() -> list[Engine]:
            async with self._services.database.acquire() as conn:
                return await named_engines(conn, self._services, organization_id)

        adapters_of = projects_with(self.caller, "adapters.read")
        all_engines = await self._all.shared_result(("engines", organization_id), ENGINES_EVERY_S, read)
        engines = [only_adapters_of(each, adapters_of) for each in all_engines]
        if "organization.read" in self.caller.permissions:
            return EnginesNow(engines)
        mine = self.caller.project_permissions
        return EnginesNow(
            [
                OwnEngine(
                    each.id,
                    each.model,
                    each.state,
                    each.since,
                    [tenant for tenant in each.tenants if tenant.project_id in mine],
                    each.resident_adapters,
                )
                for each in engines
            ]
        )

    async def _traffic(self, projects: list[str] | None) -> TrafficNow:
        organization_id = self.caller.organization_id

        async def read() -> TrafficNow:
            now = datetime.datetime.now(datetime.UTC)
            start = now.replace(second=0, microsecond=0) - datetime.timedelta(minutes=1)
            query = TrafficQuery(
                organization_id=organization_id,
                width="minute",
                start=start,
                end=now + datetime.timedelta(minutes=1),
                project_ids=projects,
                whole=True,
            )
            async with self._services.database.acquire() as conn:
                sums = await traffic_sums(conn, query)
            seconds = (now - start).total_seconds()
            requests = sum(each.num_requests for each in sums)
            errors = sum(each.num_errors or 0 for each in sums)
            input_tokens = sum(each.prompt_tokens for each in sums)
            output_tokens = sum(each.completion_tokens for each in sums)
            rates = (each / seconds for each in (requests, errors, input_tokens + output_tokens))
            return TrafficNow(seconds, requests, errors, input_tokens, output_tokens, *rates)

        key = ("traffic", organization_id, None if projects is None else tuple(sorted(projects)))
        return await self._all.shared_result(key, TRAFFIC_EVERY_S, read)


def _event(name: str, data: msgspec.Struct) -> bytes:
    return f"event: {name}\ndata: ".encode() + in_one_line(msgspec.json.encode(data)) + b"\n\n"


@get("/live", opt=needs("projects.read", in_any_project=True) | shape(media=("text/event-stream",)))
async def watch_live(request: Request[Any, Any, Any], services: Services, caller: Caller) -> ASGIResponse:
    """Watch the organization live.

    The reply is a stream of server-sent events: `engines` each second, `traffic` every two seconds, and `changed` when
    something has changed. A login or a key may have eight streams at a time. Members of projects see their own
    projects.
    """
    token, header = login_token(request), request.headers.get("authorization")

    async def rights() -> object:
        """Return the rights that the caller has now.

        Raises the guard's error: when the caller may do nothing any more.
        """
        if caller.kind == "api_key":
            return (await services.authenticator.authenticate(header, caller.address)).permissions
        found = await services.logins.find(token or "", caller.address, asyncio.get_running_loop().time())
        return found.role, found.memberships

    async def may_go_on() -> bool:
        try:
            return await rights() == at_first
        except GatewayError:
            return False

    at_first = await rights()
    return await open_stream(request, _Watcher(services, caller, may_go_on).events(), EncodedEvents())
