"""The adapters of one server: loaded when requests need them, tried before they answer, unloaded when others need room.

A server learns the digests of contents, and nothing of tenants. The server's own list shows the adapters that it holds;
this gateway decides which of them may answer, once it has seen the adapter answer. Knows neither requests nor usage.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from adapters.ref import digest_of
from engine.protocol import AdapterProbe
from gateway.backends.foreign.connection import ServerChanged, ServerGone
from gateway.backends.foreign.driver import AdapterWay, ReplicaName, ServerInfo
from gateway.backends.foreign.errors import log_text
from gateway.backends.foreign.reply import AnotherModel, BadReply, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.domain.errors import ENGINE_UNAVAILABLE, BackendFailed, GatewayError, InvalidRequest, Overloaded

LOAD_WITHIN_S = 60.0
"""The most seconds for loading an adapter, and for trying it."""

UNLOAD_WITHIN_S = 20.0
"""The most seconds for unloading an adapter: a server that hangs there still answers other requests."""

FAILED_FOR_S = 10.0
"""Seconds for which an adapter that could not be loaded is not tried again."""

FAULT_FOR_S = 60.0
"""Seconds until a server that answered an adapter's request from its base model is tested again."""

RETRY_AFTER_S = 1.0

SILENT_BASE = "it answers from the base where an adapter is asked for that it does not have"
"""The reason why no adapter of a server is used: the server may answer from the base model without an error."""

LEAST_DIFFERENCE = 1e-3
"""The least difference of log-probabilities that shows an adapter to answer, and not the base.

The other requests in a batch change log-probabilities by less.
"""
NOT_SHOWN = "with the adapter it says what it says without, so that nothing shows that the adapter answers"
"""The reason why an adapter is not used at a server whose version was not tested."""

log = structlog.get_logger(__name__)


class ServerAdapters:
    """The adapters of one server, as one gateway uses them."""

    def __init__(
        self,
        server: Server,
        way: Callable[[], AdapterWay | None],
        info: Callable[[], ServerInfo | None],
        name: ReplicaName,
        *,
        max_loaded: int,
        restarted: Callable[[], None],
        changed: Callable[[], None],
        ask_soon: Callable[[], None],
    ) -> None:
        """Begin without adapters.

        way: returns how servers of this version hold adapters.
        info: returns the facts of the server's last answer.
        max_loaded: the most adapters that this gateway has loaded there.
        restarted: called where the list of the server shows that the server was started anew.
        changed: called when another adapter answers, or an adapter no longer does.
        ask_soon: has the server asked for its condition.
        """
        self._server = server
        self._way_now = way
        self._way = way()
        self._info = info
        self._name = name
        self._max_loaded = max_loaded
        self._restarted = restarted
        self._changed = changed
        self._ask_soon = ask_soon
        self._ready: dict[str, None] = {}  # digests that have answered, the least recently used first
        self._keys: dict[str, set[str]] = {}  # content keys by digest
        self._num_running: Counter[str] = Counter()  # requests by digest
        self._pinned: set[str] = set()
        self._failed: dict[str, tuple[float, GatewayError]] = {}  # until when each error stands, by digest
        self._has_honest_base = False
        self._fault = ""
        self._fault_until_s = 0.0
        self._lock = asyncio.Lock()  # one adapter is loaded at a time, so that no room is given twice

    @property
    def fault(self) -> str:
        """The reason why no adapter of the server is used, "" where there is none."""
        return self._fault

    def resident(self) -> frozenset[str]:
        """Return the content keys of the adapters that answer now."""
        return frozenset(key for digest in self._ready for key in self._keys.get(digest, ()))

    @contextmanager
    def using(self, key: str) -> Iterator[None]:
        """Keep an adapter from being unloaded to make room, as long as the context lasts. key: "" is the base."""
        if not key:
            yield
            return
        digest = digest_of(key)
        self._num_running[digest] += 1
        try:
            yield
        finally:
            self._num_running[digest] -= 1
            if not self._num_running[digest]:
                del self._num_running[digest]

    async def ensure(self, key: str) -> None:
        """Return once an adapter answers at the server.

        key: the key of the adapter's content; "" for the base.
        Raises InvalidRequest: when the server does not have the adapter, or refuses it.
        Raises Overloaded, BackendFailed: when that is not known now.
        """
        if not key:
            return
        digest = digest_of(key)
        if digest not in self._ready:
            async with self._lock:
                if digest not in self._ready:
                    await self._make_ready(digest)
        self._ready[digest] = self._ready.pop(digest)  # the most recently used is the last
        keys = self._keys.setdefault(digest, set())
        if key not in keys:
            keys.add(key)
            self._changed()

    async def probe(self, key: str) -> AdapterProbe:
        """Try an adapter beside the base.

        Raises as `ensure`.
        """
        began_s, was_ready = time.monotonic(), digest_of(key) in self._ready
        await self.ensure(key)
        load_s = 0.0 if was_ready else time.monotonic() - began_s
        with self._as_client_errors():
            of_adapter, of_base = await self._try_adapter(digest_of(key)), await self._try_adapter("")
        return AdapterProbe(load_s, 0, 1, abs(of_adapter - of_base))

    async def pin(self, key: str) -> None:
        """Load an adapter, and keep it until `unpin` or `unload`.

        Raises as `ensure`.
        """
        await self.ensure(key)
        self._pinned.add(digest_of(key))

    def unpin(self, key: str) -> None:
        """Let an adapter be unloaded like any other."""
        self._pinned.discard(digest_of(key))

    async def unload(self, key: str) -> None:
        """Unload an adapter, whoever uses it. Raises Overloaded, BackendFailed: when the server does not do so."""
        digest = digest_of(key)
        self._pinned.discard(digest)
        if self._way is not None and self._way.can_load and digest in (self._ready.keys() | self._listed_adapters):
            async with self._lock:
                with self._as_client_errors():
                    await self._unload(digest)

    def forget(self, key: str) -> None:
        """Record that the server does not know an adapter, which is loaded again when it is asked for."""
        self._ready.pop(digest_of(key), None)

    def distrust(self) -> None:
        """Use no adapter of the server, since it answered with another model than the requested one."""
        if not self._fault:
            log.error("adapters_not_served", **self._name.fields, why=SILENT_BASE)
        self._ready.clear()
        self._keys.clear()
        self._has_honest_base, self._fault = False, SILENT_BASE
        self._fault_until_s = time.monotonic() + FAULT_FOR_S

    def listed(self) -> None:
        """Process the server's new list: adapters that are missing went with a restart, or were unloaded by somebody.

        If the server's version has changed, each adapter has to pass a probe again.
        """
        if (way := self._way_now()) is not self._way:
            self._way = way
            self._start_over()
        info = self._info()
        if info is None or info.adapters is None:
            return
        gone = self._ready.keys() - info.adapters
        for digest in gone:
            del self._ready[digest]
            self._keys.pop(digest, None)
        if gone:
            log.warning("adapters_gone", **self._name.fields, adapters=sorted(gone))
            self._has_honest_base, self._fault = False, ""  # it may be another server by now
            self._failed.clear()
            self._restarted()
            self._changed()

    def _start_over(self) -> None:
        """Forget all that is known of the server's adapters."""
        self._ready.clear()
        self._keys.clear()
        self._failed.clear()
        self._has_honest_base, self._fault = False, ""
        self._changed()

    @property
    def _lists_adapters(self) -> bool:
        """Tell whether the server lists its adapters."""
        info = self._info()
        return info is None or info.adapters is not None

    @property
    def _listed_adapters(self) -> frozenset[str]:
        info = self._info()
        return (info.adapters if info is not None else None) or frozenset()

    async def _make_ready(self, digest: str) -> None:
        """Load an adapter if it is not loaded yet, and check that it answers. Raises as `ensure`."""
        if self._way is None or (
            not self._way.can_load and self._lists_adapters and digest not in self._listed_adapters
        ):
            raise InvalidRequest("The server that runs this model does not have the adapter.", param="model")
        until_s, error = self._failed.get(digest, (0.0, None))
        if error is not None and time.monotonic() < until_s:
            raise error
        try:
            with self._as_client_errors():
                await self._check_base()
                if self._way.can_load:
                    await self._make_room()
                    await self._way.load(self._server, digest, LOAD_WITHIN_S)
                found = await self._try_adapter(digest)
                if self._way.has_to_differ and abs(found - await self._try_adapter("")) < LEAST_DIFFERENCE:
                    raise BadReply(NOT_SHOWN)
        except (InvalidRequest, BackendFailed) as failure:
            now_s = time.monotonic()
            self._failed = {each: found for each, found in self._failed.items() if found[0] > now_s}
            self._failed[digest] = now_s + FAILED_FOR_S, failure
            raise
        self._failed.pop(digest, None)
        self._ready[digest] = None

    async def _check_base(self) -> None:
        """Check, once for each start of the server, that it does not answer for an unknown adapter from its base.

        Raises AnotherModel, Overloaded: when the server does, so that another server is asked.
        Raises as `try_out`.
        """
        if self._way is None or not self._way.takes_names or self._has_honest_base:
            return
        if self._fault and time.monotonic() < self._fault_until_s:
            raise _not_now()
        try:
            await self._try_adapter(secrets.token_hex(32))
        except ServerRefused as refused:
            if refused.status not in (400, 404, 422):
                raise
            self._has_honest_base, self._fault = True, ""
        else:
            raise AnotherModel(SILENT_BASE)

    async def _make_room(self) -> None:
        """Unload the least recently used adapters beyond the limit. Raises Overloaded: when all are in use."""
        while len(self._ready) >= self._max_loaded:
            idle = (each for each in self._ready if not self._num_running[each] and each not in self._pinned)
            oldest = next(idle, None)
            if oldest is None:
                raise Overloaded(
                    "All places for adapters at the server that runs this model are in use. Send the request again "
                    "later.",
                    retry_after_s=RETRY_AFTER_S,
                )
            await self._unload(oldest)

    async def _unload(self, digest: str) -> None:
        """Unload an adapter.

        Raises ServerRefused, ServerGone: when the server does not unload the adapter, which is no longer used here.
        """
        assert self._way is not None
        self._ready.pop(digest, None)
        self._keys.pop(digest, None)
        await self._way.unload(self._server, digest, UNLOAD_WITHIN_S)

    async def _try_adapter(self, digest: str) -> float:
        """Return the log-probability of one token with an adapter. digest: "" is the base. Raises as `try_out`."""
        info = self._info()
        assert self._way is not None
        if info is None:
            raise ServerGone("it was not asked yet")
        found = await self._way.try_out(self._server, info, digest, LOAD_WITHIN_S)
        return found if math.isfinite(found) else 0.0

    @contextmanager
    def _as_client_errors(self) -> Iterator[None]:
        """Turn errors of the server within the context into the errors of `ensure`, and log them."""
        try:
            yield
        except ServerRefused as refused:
            self._log(str(refused), refused.text)
            raise _refusal(refused) from None
        except AnotherModel:
            self.distrust()
            raise _not_now() from None
        except (ServerGone, BadReply) as error:
            if isinstance(error, ServerChanged):
                self._ask_soon()
            self._log(str(error))
            raise _not_now() from None

    def _log(self, why: str, text: str = "") -> None:
        words = {"server_text": log_text(text, key=self._server.key)} if text else {}
        log.warning("adapter_failed", **self._name.fields, why=why, **words)


def _refusal(refused: ServerRefused) -> GatewayError:
    """Return the error for an adapter that the server refuses.

    If the server does not find the adapter's content, that is the operator's fault. If the server fails, that says
    nothing about the adapter.
    """
    if refused.status in (400, 413, 422):
        return InvalidRequest("The server that runs this model refuses the adapter.", param="model")
    if refused.status >= 500:
        return BackendFailed("The server that runs this model failed to load the adapter.")
    return _not_now()


def _not_now() -> Overloaded:
    return Overloaded(
        "The adapter cannot be loaded at the server that runs this model. Send the request again later.",
        code=ENGINE_UNAVAILABLE,
        retry_after_s=RETRY_AFTER_S,
    )
