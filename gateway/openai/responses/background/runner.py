"""Takes queued background responses, a few at a time, and holds the leases of those that it runs."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from prometheus_client import Counter

from gateway.content.background_responses import ClaimedResponse
from gateway.db.changes import Change
from gateway.db.content.background_responses import TABLE
from gateway.db.due_work import RARELY_S
from gateway.db.ids import new_id
from gateway.db.pool import FAILURES
from gateway.domain.errors import GatewayError
from gateway.openai.responses.background.running import Running, RunTools
from gateway.support.worker import Worker, stop_all

log = structlog.get_logger(__name__)

LEASE_S, HOLD_S = 10.0, 2.5
"""The seconds after which a gateway loses a response whose lease it does not renew, and those between two renewals."""

POLL_S = 1.0
MAX_RUNNING, MAX_RUNNING_PER_PROJECT = 8, 4
"""The most responses that one gateway runs, and that all gateways run of one project: the rest waits in the database,
where it takes no place from other requests."""


class BackgroundRunner:
    """Runs background responses between `start` and `stop`. A gateway process has one."""

    def __init__(
        self,
        tools: RunTools,
        outcomes: Counter,
        *,
        drain_s: float = 0.0,
        max_per_project: int = MAX_RUNNING_PER_PROJECT,
        wake: asyncio.Event | None = None,
    ) -> None:
        """Prepare a runner.

        outcomes: counts responses by their outcome here.
        drain_s: the most seconds for which `stop` waits for responses to end.
        max_per_project: the most responses of one project that run at once, over all gateways.
        wake: set when a response may wait; None: the runner polls every POLL_S.
        """
        self._tools = tools
        self._outcomes = outcomes
        self._drain_s = drain_s
        self._max_per_project = max_per_project
        self._owner = new_id("run")
        self._running: dict[asyncio.Task[None], Running] = {}
        self._stop_at_s: float | None = None
        self._wake, self._hold_now = wake or asyncio.Event(), asyncio.Event()
        poll_s = POLL_S if wake is None else RARELY_S
        self._claiming = Worker(self._claim_all, poll_s, name="background responses", wake=self._wake)
        self._holding = Worker(self._hold, HOLD_S, name="background leases", wake=self._hold_now)

    def start(self) -> None:
        """Begin to claim queued responses, and to renew the leases of those that run."""
        self._claiming.start()
        self._holding.start()

    def retire(self) -> None:
        """Claim no more responses: this gateway is about to stop."""
        if self._stop_at_s is None:
            self._stop_at_s = time.monotonic() + self._drain_s
            self._claiming.cancel()

    async def stop(self) -> None:
        """Let running responses end until `drain_s` after `retire`, and leave the rest to other gateways."""
        self.retire()
        if self._running:
            assert self._stop_at_s is not None
            await asyncio.wait(self._running, timeout=max(0.0, self._stop_at_s - time.monotonic()))
        for running in list(self._running.values()):
            running.stop()
        if self._running:
            await asyncio.wait(self._running)
        await stop_all(self._claiming, self._holding)

    def changed(self, change: Change | None) -> None:
        """Check for work at once when a change says that a response was queued or is to be cancelled."""
        if change is None or change.table == TABLE:
            self._wake.set()
            if change is None or any(running.claim.turn.id == change.id for running in self._running.values()):
                self._hold_now.set()

    async def _claim_all(self) -> None:
        """Claim responses while there is room.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        while len(self._running) < MAX_RUNNING:
            claim = await self._tools.background.claim(
                self._owner, lease_s=LEASE_S, max_per_project=self._max_per_project
            )
            if claim is None:
                return
            try:
                running = Running(claim, self._tools)
            except (msgspec.DecodeError, GatewayError):  # another version of the server has understood it
                log.exception("background_response_unreadable", response_id=claim.turn.id)
                await self._give_up(claim)
                continue
            self._begin_response(running)

    def _begin_response(self, running: Running) -> None:
        task = asyncio.create_task(self._run_response(running))
        self._running[task] = running
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._wake.set()

    async def _run_response(self, running: Running) -> None:
        turn, began_s, outcome = running.claim.turn, time.monotonic(), "left"
        try:
            outcome = await running.run()
        except FAILURES as error:  # its lease ends, and it is taken again
            log.warning("background_response_left", response_id=turn.id, error=repr(error))
        except Exception:
            log.exception("background_response_failed", response_id=turn.id)
            outcome = "failed"
            await self._give_up(running.claim)
        self._outcomes.labels(outcome).inc()
        ms = round((time.monotonic() - began_s) * 1e3, 1)
        log.info(
            "background_response", response_id=turn.id, tenant=turn.project_id, turn=turn.fence, outcome=outcome, ms=ms
        )

    async def _give_up(self, claim: ClaimedResponse) -> None:
        """End a response as failed, with the events logged so far, since another run would fail in the same way."""
        response = msgspec.json.decode(claim.response, type=dict[str, Any])
        response |= {"status": "failed", "error": {"code": "server_error", "message": "The server had an error."}}
        with suppress(*FAILURES):  # it is taken again
            await self._tools.background.give_up(claim.turn, msgspec.json.encode(response))

    async def _hold(self) -> None:
        """Renew the leases of all responses that run here.

        Cancel the responses that are to be cancelled, and stop the runs of those that another gateway has taken.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        if not self._running:
            return
        mine = list(self._running.values())
        ids = [running.claim.turn.id for running in mine]
        held = await self._tools.background.hold(self._owner, ids, lease_s=LEASE_S)
        for running in mine:
            is_cancelled = held.get((running.claim.turn.id, running.claim.turn.fence))
            if is_cancelled is None:
                running.lose()
            elif is_cancelled:
                running.cancel()
