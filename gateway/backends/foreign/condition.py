"""The condition of one server as its gateway knows it: from health checks, and from the ends of its requests.

Knows neither requests nor usage.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable

import structlog

from engine.protocol import EngineStats
from gateway.backends.base import Capabilities, Health, ServerState, Unanswered
from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.driver import (
    Driver,
    Pooled,
    ReplicaName,
    ServerInfo,
    capabilities_of,
)
from gateway.backends.foreign.drivers.choice import DriverChoice
from gateway.backends.foreign.errors import log_text
from gateway.backends.foreign.failures import NOT_READY, not_ready
from gateway.backends.foreign.reply import BadReply, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.snapshot import EngineSnapshot, State
from gateway.domain.errors import ENGINE_UNAVAILABLE, SHUTTING_DOWN
from gateway.domain.routing.breaker import AdmissionToken, Breaker
from gateway.support.worker import Worker

INSPECT_WITHIN_S = 20.0
"""The most seconds for a server's answer that it is well: SGLang generates a token for the answer, beside its other
work."""

KEY_REFUSED = frozenset({401, 403})
"""HTTP statuses by which a server says that it shows its health to requests with a good key alone."""

NOT_FOUND = 404
"""The HTTP status of a server that lacks a route which all servers of its kind have."""

MAX_FALSE_USAGES = 10
"""The number of false usages, of the last FALSE_USAGES_AMONG, at which a server gets no requests for DISTRUST_S."""

FALSE_USAGES_AMONG = 50
DISTRUST_S = 60.0

SHARED_CACHE = "tenants would share its prompt cache, as far as is known, which 'separate_caches' forbids"
"""The reason why a server of an untested version gets no requests, where tenants' caches have to be separate."""

FIRST_FULL_S, MAX_FULL_S = 0.5, 8.0
"""Seconds for which a server without room is asked after others of its pool: the first time, and at most."""

TICK_S = 0.01
"""Seconds by which a timer of the event loop may be early."""

log = structlog.get_logger(__name__)


def new_engine_id() -> str:
    """Return an id for a server's process."""
    return f"server-{uuid.uuid4().hex[:16]}"


def _do_nothing() -> None:
    """Do nothing: the server has no adapters."""


class ServerCondition:
    """The condition of one server, between `start` and `stop`."""

    def __init__(
        self,
        server: Server,
        driver: Driver,
        pooled: Pooled,
        authorize: Callable[[], Awaitable[str]],
        changed: Callable[[], None],
        *,
        name: ReplicaName,
        listed: Callable[[], None] = _do_nothing,
        distrust_s: float = DISTRUST_S,
    ) -> None:
        """Begin with a server that has not answered yet.

        authorize: returns the key that the server asks for, "" for none.
        changed: called when the condition has changed.
        listed: called when the server has listed its adapters anew.
        distrust_s: seconds for which a server whose counts are never true gets no requests.
        """
        self.info: ServerInfo | None = None
        """The server as it was seen last; None before it was ever seen."""
        self.capabilities: Capabilities = capabilities_of(pooled, driver, None)
        """The bounds of the server that are known."""
        self.breaker = Breaker()
        self.engine_id = new_engine_id()
        """The id of the server's process, as far as this gateway can tell one from another; in no log line."""
        self.note = ""
        """A remark for operators about a server that is ready; "" for none."""
        self.choice = DriverChoice(driver, name)
        """The driver by which the server is asked."""
        self._server = server
        self._pooled = pooled
        self._authorize = authorize
        self._changed = changed
        self._name = name
        self._listed = listed
        self._distrust_s = distrust_s
        self._has_answered = False
        self._is_draining = False
        self._reason = "the server has not answered yet"
        self._since = int(time.time())
        self._is_due = asyncio.Event()
        health_s = pooled.settings.health_seconds
        self._watching = Worker(self._ask_server, health_s, name="condition of a server", wake=self._is_due)
        self._notified: tuple[bool, str] | None = None  # the condition as it was when watchers were last notified
        self._are_true: list[bool] = []
        self._distrusted_until_s = 0.0
        self._full_s = FIRST_FULL_S
        self._full_until_s = 0.0

    @property
    def is_ready(self) -> bool:
        """True if the server takes a new request of this gateway, even if only as a trial of the breaker."""
        now_s = _now_s()
        is_trusted = now_s >= self._distrusted_until_s
        return self._has_answered and not self._is_draining and is_trusted and self.breaker.state(now_s) != "open"

    @property
    def is_full(self) -> bool:
        """True if the server said a moment ago that it has no room: others of its pool are asked first."""
        return _now_s() < self._full_until_s

    @property
    def detail(self) -> str:
        """The reason why the server is not ready, in words that anybody may read."""
        if self._is_draining:
            return "draining"
        return "ready" if self.is_ready else NOT_READY

    @property
    def reason(self) -> str:
        """The reason why the server is not ready, in words for operators."""
        now_s = _now_s()
        if self._is_draining:
            return "draining"
        if now_s < self._distrusted_until_s:
            return "the counts of tokens that the server reports cannot be true"
        if self._has_answered and self.breaker.state(now_s) == "open":
            return "the server failed at its last requests"
        return self._reason

    def start(self) -> None:
        """Begin to check the server's health."""
        self._watching.start()

    async def stop(self) -> None:
        """Stop checking the server's health."""
        await self._watching.stop()

    def take(self) -> tuple[ServerInfo, AdmissionToken]:
        """Return the server's facts from its last answer, and the breaker's permit to send a request now.

        Raises Unanswered: when it takes none.
        """
        admitted = self.breaker.take(_now_s()) if self.is_ready and self.info is not None else None
        if admitted is None or self.info is None:
            raise self._not_ready()
        return self.info, admitted

    def check(self) -> None:
        """Check that the server takes a request now.

        Raises Unanswered: when it takes none.
        """
        if not self.is_ready:
            raise self._not_ready()

    def check_ready(self) -> None:
        """Check that the server takes a request now.

        Raises Overloaded: when it takes none.
        """
        if not self.is_ready:
            raise not_ready(self.detail)

    def restarted(self) -> None:
        """Record that the server was started again: another process answers from now on."""
        self.engine_id = new_engine_id()

    def _not_ready(self) -> Unanswered:
        code = SHUTTING_DOWN if self._is_draining else ENGINE_UNAVAILABLE
        return Unanswered(not_ready(self.detail, code), "absent")

    def succeeded(self, admitted: AdmissionToken, *, is_false: bool) -> None:
        """Record that the server answered a request.

        is_false: True if the reported counts cannot be true.
        """
        self.breaker.succeeded(admitted, _now_s())
        self._full_s, self._full_until_s = FIRST_FULL_S, 0.0
        self._are_true = [*self._are_true[1 - FALSE_USAGES_AMONG :], not is_false]
        if self._are_true.count(False) >= MAX_FALSE_USAGES:
            self._are_true = []
            self._distrusted_until_s = _now_s() + self._distrust_s
            log.error("server_distrusted", **self._name.fields, seconds=self._distrust_s)
            asyncio.get_running_loop().call_later(self._distrust_s + TICK_S, self._notify)
        self._notify()

    def full(self, admitted: AdmissionToken, retry_after_s: float | None) -> None:
        """Record that the server had no room for a request.

        Each time that it has none again, it counts as full for twice as long. retry_after_s: the time that it names
        itself, if any.
        """
        self.breaker.gave_up(admitted)
        if not self.is_full:
            self._full_until_s = _now_s() + min(MAX_FULL_S, max(self._full_s, retry_after_s or 0.0))
            self._full_s = min(MAX_FULL_S, 2 * self._full_s)

    def failed(self, admitted: AdmissionToken) -> None:
        """Record that the server failed at a request."""
        was_ready = self.is_ready
        self.breaker.failed(admitted, _now_s())
        if self.is_ready != was_ready:
            self._notify()
            asyncio.get_running_loop().call_later(self.breaker.open_for_s(_now_s()) + TICK_S, self._notify)

    def begin_draining(self) -> None:
        """Refuse new requests from now on."""
        self._is_draining = True
        self._since = int(time.time())

    def health(self) -> Health:
        """Return the state as the pipeline reads it."""
        reason = self.note if self.is_ready else self.reason
        return Health(self.is_ready, self.detail, None, self._server.url, self.engine_id, reason, self._trust())

    def _trust(self) -> ServerState:
        now_s = _now_s()
        state = self.breaker.state(now_s)
        open_for_s = self.breaker.open_for_s(now_s) if state == "open" else 0.0
        return ServerState(
            state,
            open_for_s,
            self._are_true.count(False),
            max(0.0, self._distrusted_until_s - now_s),
            version=self.choice.version,
            is_tried=not self.choice.note,
            has_adapters=self.choice.has_adapters,
            separates_caches=not self.choice.may_share_cache,
        )

    def snapshot(self, model: str, num_running: int) -> EngineSnapshot:
        """Return the state as the dashboard shows it.

        model: the name of the pool. num_running: the requests of this gateway that the server runs.
        """
        state: State = "draining" if self._is_draining else "ready" if self.is_ready else "unreachable"
        return EngineSnapshot(
            id=self.engine_id,
            model=model,
            state=state,
            detail=self.reason,
            since=self._since,
            stats=EngineStats(num_running=num_running) if self._has_answered else None,
        )

    def ask_soon(self) -> None:
        """Check the server's health now, since it has changed."""
        self._is_due.set()

    async def _ask_server(self) -> None:
        before, could, had_answered = self.info, self.capabilities, self._has_answered
        try:
            self._server.key = await self._authorize()
            await self.choice.check_version(self._server, is_new=not had_answered)
            self.info = await self.choice.driver.inspect(self._server, INSPECT_WITHIN_S)
            self.capabilities = capabilities_of(self._pooled, self.choice.driver, self.info)
            self._listed()
            if self._pooled.settings.separate_caches and self.choice.may_share_cache:
                self._unready(SHARED_CACHE)
            else:
                self._answered()
        except ServerGone as gone:
            self._unready(f"the server does not answer: {gone}")
        except ServerRefused as refused:
            text = log_text(refused.text, key=self._server.key)
            if refused.status not in KEY_REFUSED:
                hint = "; is it a server of the pool's engine, and is the URL's path right?"
                self._unready(f"the server is not ready: {refused}{hint * (refused.status == NOT_FOUND)}", text)
            elif self._pooled.settings.own_keys == "none":
                self._unready(self._why_refused(), text)
            elif self._pooled.settings.separate_caches and self.choice.may_share_cache:
                self._unready(SHARED_CACHE)
            elif served_model := self._pooled.settings.served_model:
                self.info = ServerInfo(served_model)  # the keys of projects may be good
                self._answered(self._why_refused())
            else:
                self._unready(f"{self._why_refused()}, so that 'served_model' has to say which model it serves", text)
        except BadReply as bad:
            self._unready(f"the server is not what it should be: {bad}")
        except Exception as error:  # the database is away, a key is unreadable, or the address may not be connected to
            self._unready("the server cannot be asked", f"{type(error).__name__}: {error}")
        self._notify(has_news=self.info != before or self.capabilities != could)

    def _notify(self, *, has_news: bool = False) -> None:
        """Call the watchers if the condition has changed since their last notice.

        has_news: True: call them in any case.
        """
        now = self.is_ready, self.reason
        if now != self._notified or has_news:
            self._notified = now
            self._changed()

    def _answered(self, note: str = "") -> None:
        """Accept requests for the server from now on.

        note: a remark for operators.
        """
        if not self._has_answered:
            self._since = int(time.time())
        self._has_answered, self._reason, self.note = True, note or "ready", note or self.choice.note

    def _why_refused(self) -> str:
        return "the server refuses the pool's key" if self._server.key else "the server asks for a key"

    def _unready(self, reason: str, text: str = "") -> None:
        """Refuse requests for the server.

        text: the server's own words, for the log alone.
        """
        if self._has_answered or reason != self._reason:
            words = {"server_text": text} if text else {}
            log.warning("server_not_ready", **self._name.fields, why=reason, **words)
            self._since = int(time.time())
        self._has_answered, self._reason, self.note = False, reason, ""


def _now_s() -> float:
    return time.monotonic()
