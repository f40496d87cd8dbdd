"""The processes of one machine in their order: database, engine, gateways. Started upwards, drained downwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.db.embedded import EmbeddedPostgres
from gateway.serve.listener import Listener
from gateway.serve.stop import StopSignals
from gateway.serve.supervisor import Child, Exited, stop_children
from gateway.serve.terminal import Terminal

ENGINE_STOP_S = 15.0
GATEWAY_MARGIN_S = 20.0
"""What gateways get on top of the requests' own bound, to write down usage and close."""

FAILURES_SHOWN = 2
"""The failure in a row at which the child's last log lines are shown: once may be chance, twice is a reason."""

FAILURES_TO_GIVE_UP = 5


class StartFailed(RuntimeError):
    """A child fails again and again before the first request could be served; the message holds its last log lines."""


class Fleet:
    """postgres: None where the database is somebody else's. The caller started it; the fleet keeps it running."""

    def __init__(
        self,
        postgres: EmbeddedPostgres | None,
        engine: Child,
        gateways: Sequence[Child],
        listener: Listener,
        terminal: Terminal,
    ) -> None:
        self._postgres = postgres
        self._engine = engine
        self._gateways = list(gateways)
        self._listener = listener
        self._terminal = terminal

    def start(self) -> None:
        """Start the engine and the gateways; returns at once. Raises PortUnavailable."""
        self._listener.listen()
        for child in (self._engine, *self._gateways):
            child.start()

    def tend(self, stop: StopSignals) -> None:
        """Restart what ended and is due; to be called a few times a second.

        Raises EmbeddedPostgresError, and StopRequested instead of waiting for a database that replays its log.
        """
        if self._postgres is not None and not self._postgres.alive():
            self._terminal.say("PostgreSQL ended; restarting it")
            with stop.interrupts():
                self._postgres.start()
        for child in (self._engine, *self._gateways):
            event = child.poll()
            if event is not None:
                self._terminal.say(str(event))
            if isinstance(event, Exited) and event.failures == FAILURES_SHOWN:
                self._terminal.show(child.log_tail())

    def check_start(self) -> None:
        """Raises StartFailed when a child has failed too often to hope; for use until the first time all is ready."""
        for child in (self._engine, *self._gateways):
            if child.failures >= FAILURES_TO_GIVE_UP:
                raise StartFailed(
                    f"{child.name} failed {child.failures} times in a row; its last lines:\n{child.log_tail()}"
                )

    def drain(self, drain_s: float, hurried: Callable[[], bool]) -> None:
        """No new requests; running ones get drain_s; then the engine stops. hurried: see `stop_children`."""
        self._listener.close()
        for children, grace_s in ((self._gateways, drain_s + GATEWAY_MARGIN_S), ([self._engine], ENGINE_STOP_S)):
            for name in stop_children(children, grace_s, hurried):
                self._terminal.say(f"{name} did not stop in time and was killed")
