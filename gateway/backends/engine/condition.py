"""The condition of one engine as its gateway knows it: whether it is connected, its bounds, and its last heartbeat.

Knows neither requests nor usage.
"""

from __future__ import annotations

import time

import msgspec

from engine.protocol import MINOR_OF_THINKING, EngineStats, GenerateRequest, Welcome, minor_of
from gateway.backends.base import Health, Unanswered
from gateway.backends.engine.failures import not_ready
from gateway.backends.engine.link import EngineLink
from gateway.backends.engine.model import MAX_CHOICES, EngineModel
from gateway.backends.snapshot import EngineSnapshot, HeartbeatTrend, State
from gateway.domain.errors import ENGINE_UNAVAILABLE, SHUTTING_DOWN


class EngineCondition:
    """The facts about one engine, from its messages and from this gateway's own decisions."""

    def __init__(self, model: EngineModel, link: EngineLink) -> None:
        """Begin without a connection. link: the connection to the engine, which says why an engine is not there."""
        self.capabilities = model.capabilities
        """The bounds that the engine reported when it was connected last; before that, the bounds of the model."""
        self.resident: frozenset[str] = frozenset()
        """Content keys of the adapters on the engine's device."""
        self._model = model
        self._link = link
        self._welcome: Welcome | None = None
        self._is_connected = False
        self._is_draining = False
        self._stats: EngineStats | None = None
        self._trend = HeartbeatTrend()
        self._since = int(time.time())

    @property
    def is_ready(self) -> bool:
        """True if the engine takes new requests of this gateway."""
        return self._is_connected and not self._is_draining

    @property
    def engine_id(self) -> str:
        """The id of the engine's process; "" before one was ever there."""
        return self._welcome.engine_id if self._welcome is not None else ""

    def check_ready(self) -> None:
        """Check that the engine takes new requests.

        Raises Unanswered: when it takes none.
        """
        if not self.is_ready:
            code = SHUTTING_DOWN if self._is_draining else ENGINE_UNAVAILABLE
            raise Unanswered(not_ready(self._detail, code), "absent")

    def check_understands(self, request: GenerateRequest) -> None:
        """Check that the engine's version knows all that a request's grammar says.

        Raises Unanswered: when the engine is of an older version, so that another engine may be asked.
        """
        if minor_of(request) > self._minor:
            raise Unanswered(not_ready("the engine's version does not know all of the request's grammar"), "absent")

    def without_unknown_thinking(self, request: GenerateRequest) -> GenerateRequest:
        """Return a request as the engine knows it: for one of an older version, a grammar holds from the beginning.

        A request whose prompt has begun the thinking stays as it is, and is not sent to such an engine.
        """
        grammar = request.sampling.grammar
        if grammar is None or grammar.thinking is None or self._minor >= MINOR_OF_THINKING:
            return request
        if grammar.thinking.begin is None and self._model.tokenizer.channels is None:
            return request
        sampling = msgspec.structs.replace(request.sampling, grammar=msgspec.structs.replace(grammar, thinking=None))
        return msgspec.structs.replace(request, sampling=sampling)

    @property
    def _minor(self) -> int:
        """The minor of the engine's protocol; 0 where no engine was ever there."""
        return self._welcome.minor if self._welcome is not None else 0

    def health(self) -> Health:
        """Return the state as the pipeline reads it."""
        return Health(self.is_ready, self._detail, self._stats, self._link.endpoint, self.engine_id)

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return the state as the dashboard shows it. model: the public name of the base model."""
        welcome = self._welcome
        state: State = "unreachable" if not self._is_connected else "draining" if self._is_draining else "ready"
        return EngineSnapshot(
            id=self.engine_id,
            model=model,
            state=state,
            detail=self._detail,
            since=self._since,
            stats=self._stats,
            limits=welcome.limits if welcome is not None and self._is_connected else None,
            rates=self._trend.rates,
            device=welcome.device if welcome is not None else "",
            dtype=welcome.dtype if welcome is not None else "",
            fingerprint=welcome.fingerprint if welcome is not None else "",
        )

    def connected(self, welcome: Welcome) -> None:
        """Store the bounds of an engine that has connected."""
        self._welcome = welcome
        limits = welcome.limits
        self.capabilities = msgspec.structs.replace(
            self._model.capabilities,
            max_model_len=limits.max_model_len,
            max_choices=min(MAX_CHOICES, limits.max_num_seqs),
            max_in_flight=limits.max_num_seqs + limits.max_waiting,
            fingerprint=welcome.fingerprint,
            max_running=limits.max_num_seqs,
            block_size=limits.block_size,
        )
        self._is_connected = True
        self._since = int(time.time())

    def disconnected(self) -> None:
        """Forget the state of a lost engine, except its bounds."""
        self._is_connected = False
        self._since = int(time.time())
        self._stats = None
        self._trend.forget()
        self.resident = frozenset()

    def heartbeat(self, stats: EngineStats, now_s: float) -> None:
        """Store the engine's latest statistics.

        now_s: the time on a monotonic clock.
        """
        self._stats = stats
        self._trend.add(now_s, stats)
        self.resident = frozenset(stats.resident_adapters)

    def adapter_moved(self, key: str, *, is_resident: bool) -> None:
        """Record that an adapter is on the engine's device now, or is not any more.

        is_resident: True: it is there now; False: it has left.
        """
        self.resident = self.resident | {key} if is_resident else self.resident - {key}

    def begin_draining(self) -> None:
        """Refuse new requests from now on."""
        self._is_draining = True
        self._since = int(time.time())

    @property
    def _detail(self) -> str:
        return "draining" if self._is_draining else self._link.detail
