"""The processes of one machine in order: database, agent, worker, gateways. Started upwards, drained downwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gateway.postgres.embedded import EmbeddedPostgres
from gateway.serve.listener import Listener
from gateway.serve.stop import StopRequested, StopSignals
from gateway.serve.supervisor import Child, Exited, stop_children
from gateway.serve.terminal import Terminal

AGENT_STOP_S = 25.0
"""The seconds that the agent gets to stop its engines, each of which gets less."""

WORKER_STOP_S = 10.0
"""The seconds that the worker gets to give its transaction up."""

GATEWAY_MARGIN_S = 20.0
"""The seconds that gateways get on top of the requests' own bound, to write down usage and close."""

FAILURES_SHOWN = 2
"""The number of failures in a row from which a child's last log lines are shown: one may be chance."""

FAILURES_TO_GIVE_UP = 5
REASON_LINES = 20
"""The number of last log lines that are searched for a child's own error message."""


class StartFailed(RuntimeError):
    """The error for a child that cannot run with this configuration, or repeatedly fails before the first request.

    The message is the child's own, or holds its last log lines.
    """


class Fleet:
    """The children of one `serve`.

    postgres: the embedded server, which the caller has started and the fleet keeps running; None where the database is
    somebody else's.
    agent: runs the engines, which live on when the agent is killed, and are adopted by the next one.
    worker: does work that no request waits for.
    """

    def __init__(
        self,
        postgres: EmbeddedPostgres | None,
        agent: Child,
        worker: Child,
        gateways: Sequence[Child],
        listener: Listener,
        terminal: Terminal,
    ) -> None:
        self._postgres = postgres
        self._agent = agent
        self._worker = worker
        self._gateways = list(gateways)
        self._listener = listener
        self._terminal = terminal

    def start(self, stop: StopSignals) -> None:
        """Start the agent, the worker and the gateways, without waiting until they are ready.

        Raises PortUnavailable: when the address cannot be listened on.
        Raises StopRequested: when a signal asks for the end meanwhile.
        """
        self._listener.listen()
        for child in (self._agent, self._worker, *self._gateways):
            if stop.requested:
                raise StopRequested
            child.start()

    def record_ready(self, agent_command: Sequence[str]) -> None:
        """Record that all children are ready. agent_command: the command for later starts of the agent."""
        self._agent.run_next(agent_command)

    def tend(self, stop: StopSignals, *, starting: bool = False) -> None:
        """Restart children that have ended and whose delay is over; to be called a few times a second.

        starting: True until all has been ready once, so that a child which cannot run ends the start.

        Raises StartFailed: when a child cannot run, while starting.
        Raises EmbeddedPostgresError: when PostgreSQL cannot be started again.
        Raises StopRequested: when a signal asks for the end while the database replays its log.
        """
        if self._postgres is not None and not self._postgres.alive():
            self._terminal.report("PostgreSQL ended; restarting it")
            with stop.interrupts():
                self._postgres.start()
        for child in (self._agent, self._worker, *self._gateways):
            if stop.requested:
                return
            event = child.poll()
            if starting and isinstance(event, Exited):
                _check_start(child, event)
            if event is not None:
                self._terminal.report(str(event))
            if isinstance(event, Exited) and event.failures == FAILURES_SHOWN:
                self._terminal.show(child.log_tail())

    def drain(self, drain_s: float, forced: Callable[[], bool]) -> None:
        """Stop the gateways, which get drain_s; then the worker, then the agent, which stops its engines.

        forced: tells whether processes are to stop at once instead of at the end of their time. Gateways close the
        listener, too, when they take no more requests.
        """
        self._listener.close()
        stops = (
            (self._gateways, drain_s + GATEWAY_MARGIN_S),
            ([self._worker], WORKER_STOP_S),
            ([self._agent], AGENT_STOP_S),
        )
        for children, grace_s in stops:
            for name in stop_children(children, grace_s, forced):
                self._terminal.report(f"{name} did not stop in time and was killed")


def _check_start(child: Child, exited: Exited) -> None:
    """Check that a child that ended can be started again.

    Raises StartFailed: when a child says that its configuration is wrong, or has failed too often.
    """
    if exited.returncode == os.EX_CONFIG:
        prefix = f"{child.name}: "
        lines = child.log_tail(REASON_LINES).splitlines()
        errors = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] or lines[-1:]
        raise StartFailed("\n".join(errors) if errors else f"{child.name} cannot run with these settings")
    if exited.failures >= FAILURES_TO_GIVE_UP:
        raise StartFailed(f"{child.name} failed {exited.failures} times in a row; its last lines:\n{child.log_tail()}")
