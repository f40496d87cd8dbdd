"""The stepping thread: commands in, schedule, launch, commit, outputs out. It knows no gateways and no sockets.

If the runner can, it works one step ahead: while the device computes a step the next one is planned and launched behind
it, and only then is the first one's result waited for, so that the device does not wait for what the host does in
between. The next step is not planned before the device is halfway through, so that requests which arrive by then are
part of it.

A step of batch work alone pauses when interactive requests arrive, if the runner can: steps of these are computed, and
between them the paused step goes on for a small share of the time. Once there are no more, it goes on alone.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence as Many
from typing import NamedTuple

import msgspec

from engine.compilations import Compilations
from engine.device import PausableStep, Pause, Runner, Step
from engine.faults import is_device_lost
from engine.lora.pool import AdapterPool, Arrival
from engine.mailbox import Drain, Drained, Mailbox, ServedElsewhere, Wake
from engine.probes import Probes
from engine.protocol import (
    Abort,
    AdapterStatus,
    EngineError,
    Final,
    GenerateRequest,
    LoadAdapter,
    StepOutputs,
    UnloadAdapter,
    Usage,
)
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Plan
from engine.statistics import Statistics

log = logging.getLogger(__name__)

NOTHING = Plan([], [])
IDLE_WAIT_S = 0.5
STATS_INTERVAL_S = 0.2


class _Flight(NamedTuple):
    """A step that was launched and whose results were not taken yet."""

    plan: Plan
    step: Step
    start_s: float
    """The time at which the step's plan was begun."""


class _Pausing(msgspec.Struct):
    """A step of batch work alone, computed in parts."""

    plan: Plan
    step: PausableStep
    seconds: float = 0.0
    """Seconds of all parts so far."""
    credit_s: float = 0.0
    """Seconds that the next parts may take beside other steps."""

    @property
    def has_ended_sequence(self) -> bool:
        """True once a sequence has ended: its blocks are free, and the rest of the step still writes to them."""
        return not all(chunk.sequence.is_alive for chunk in self.plan.chunks)

    def go_on(self, pause: Pause | None, seconds: float) -> bool:
        """Compute a part as `PausableStep.go_on` does, and count its time.

        pause: asks for the pause; None: nothing asks for one. seconds: the seconds after which the part ends anyway.
        """
        start_s = time.perf_counter()
        is_done = self.step.go_on(pause, seconds)
        self.seconds += time.perf_counter() - start_s
        return is_done


class EngineCore:
    """Runs the engine's loop on the stepping thread. All parts of the engine belong to that thread from `run` on."""

    def __init__(
        self,
        mailbox: Mailbox,
        scheduler: Scheduler,
        adapters: AdapterPool,
        runner: Runner,
        compilations: Compilations,
        statistics: Statistics,
        probes: Probes,
    ) -> None:
        self._mailbox = mailbox
        self._scheduler = scheduler
        self._adapters = adapters
        self._runner = runner
        self._compilations = compilations
        self._statistics = statistics
        self._probes = probes
        self._draining = False
        self._flight: _Flight | None = None
        self._pausing: _Pausing | None = None
        self._landed_s = 0.0  # when the last results were taken
        self._moved = True  # the last turn launched a step or took its results
        self._wanted: set[str] = set()  # adapters whose LoadAdapter awaits an answer
        self._next_stats_s = 0.0

    def run(self) -> None:
        """Run turns until drained.

        A fault outside a step, in what is done beside it, or of a lost device ends the process: the supervisor starts a
        fresh one.
        """
        while not (self._draining and self._scheduler.is_empty):
            self.turn()
        self.close()

    def turn(self) -> None:
        """Obey waiting commands, launch a step, and take the results of the step that the last turn launched.

        If the last turn neither launched a step nor took results, first wait until a command comes.
        """
        flight = self._take_flight()
        has_flown = flight is not None
        self._mailbox.pause.forget()  # before commands are taken, so that none is overlooked that comes from now on
        self._attend(0.0 if self._moved else IDLE_WAIT_S)
        if self._pausing is not None and self._pausing.has_ended_sequence:
            if flight is not None:
                self._land(flight)
                flight = None
            self._go_on(self._pausing)  # before anybody gets its blocks
        start_s = time.perf_counter()
        plan = self._plan() if flight is None or self._runner.runs_ahead else NOTHING
        self._moved = bool(plan) or has_flown or self._pausing is not None
        if flight is not None and not (plan and self._runner.launches_fast(plan)):
            self._land(flight)  # now, rather than when a long launch is done
            flight, plan = None, plan.alive
        fault = self._launch(plan, start_s) if plan else None
        if flight is not None:
            self._land(flight)
        if fault is not None:
            self._give_up(plan, fault)
        if self._pausing is not None and self._flight is None:
            self._go_on_beside(self._pausing, is_alone=not has_flown)
        self._post_stats(idle=not self._moved)

    def close(self) -> None:
        """End the helping threads after the last turn, and post that the engine is drained."""
        self._adapters.close()
        self._compilations.close()
        self._post_stats(idle=True)
        self._mailbox.post(Drained())

    def preload(self, key: str) -> None:
        """Wait, before `run`, until an adapter is resident."""
        self._adapters.preload(key)

    def _attend(self, timeout_s: float = 0.0) -> None:
        """Process waiting commands, loaded adapters and compiled grammars; wait up to timeout_s for the first command.

        A step may be on its way: a request that ends gives its blocks back, and the sequence that gets them computes
        after that step.
        """
        for command in self._mailbox.take_commands(timeout_s):
            self._obey(command)
        self._take_arrivals()
        for request_id, error in self._compilations.settle():
            self._fail([request_id], error)

    def _obey(self, command: object) -> None:
        match command:
            case GenerateRequest():
                self._add(command)
            case Abort():
                self._abort(command)
            case LoadAdapter():
                self._load_adapter(command)
            case UnloadAdapter(key, evict):
                if evict:
                    self._unload(key)
                else:
                    self._adapters.unpin(key)
                    self._mailbox.post(AdapterStatus(key, self._adapters.is_resident(key)))
            case ServedElsewhere(services):
                self._scheduler.count_elsewhere(services)
            case Drain():
                self._draining = True
            case Wake():
                pass

    def _load_adapter(self, command: LoadAdapter) -> None:
        key = command.digest
        is_resident = self._adapters.pin(key) if command.pin else self._adapters.request(key)
        if command.probe:
            for request in self._probes.start(key, is_resident):
                self._add(request)
        elif is_resident:
            self._mailbox.post(AdapterStatus(key, True))
        else:
            self._wanted.add(key)

    def _unload(self, key: str) -> None:
        self._wanted.discard(key)
        self._mailbox.post(AdapterStatus(key, not self._adapters.unload(key)))
        if self._probes.is_loading(key):
            error = EngineError("queue_full", "the adapter was unloaded before it was probed")
            self._mailbox.post(self._probes.fail(key, error))

    def _add(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        error = self._compilations.refusal(sampling.grammar) or self._scheduler.add(request, seed)
        if error is not None:
            usage = Usage(prompt_tokens=0, completion_tokens=0)  # nothing of it was computed
            self._post(StepOutputs(finals=[Final(request.request_id, "error", usage, error)]))
        elif sampling.grammar is not None:
            group = self._scheduler.find(request.request_id)
            assert group is not None
            self._compilations.submit(group, sampling.grammar)

    def _abort(self, abort: Abort) -> None:
        group = self._scheduler.find(abort.request_id)
        if group is None:
            return
        final = self._scheduler.abort(abort.request_id, abort.num_kept_tokens, abort.index)
        if final is None:
            return
        self._post(StepOutputs(finals=[final]))
        self._compilations.withdraw(group)
        key = group.request.adapter
        if key and not self._is_awaited(key):
            self._adapters.withdraw(key)

    def _fail(self, request_ids: Many[str], error: EngineError) -> None:
        """End requests with an error. Each id may be named more than once, for more than one choice."""
        finals = [final for name in request_ids if (final := self._scheduler.fail(name, error)) is not None]
        self._post(StepOutputs(finals=finals))

    def _post(self, outputs: StepOutputs) -> None:
        """Post outputs to the gateways, except those of probes, which are this engine's own."""
        outputs, statuses = self._probes.take(outputs)
        for status in statuses:
            self._mailbox.post(status)
        if outputs.deltas or outputs.finals:
            self._mailbox.post(outputs)

    def _is_awaited(self, key: str) -> bool:
        return key in self._wanted or self._probes.is_loading(key) or bool(self._scheduler.waiting_for(key))

    def _take_arrivals(self) -> None:
        for arrival in self._adapters.arrivals():
            if arrival.error is None and not self._adapters.is_resident(arrival.key):
                continue  # unloaded meanwhile: a command that came since then waits for another load
            self._go_on_probing(arrival)
            waiting = self._scheduler.waiting_for(arrival.key)
            if arrival.num_bytes and waiting:
                waiting[0].adapter_load_bytes = arrival.num_bytes
            if arrival.error is not None and waiting:
                self._fail([sequence.request_id for sequence in waiting], arrival.error)
            elif not waiting:
                self._adapters.withdraw(arrival.key)
            if arrival.key in self._wanted:
                self._wanted.discard(arrival.key)
                error = arrival.error
                status = AdapterStatus(arrival.key, True)
                if error is not None:
                    status = AdapterStatus(arrival.key, False, error.message, error.code)
                self._mailbox.post(status)

    def _go_on_probing(self, arrival: Arrival) -> None:
        if not self._probes.is_loading(arrival.key):
            return
        if arrival.error is not None:
            self._mailbox.post(self._probes.fail(arrival.key, arrival.error))
            return
        for request in self._probes.loaded(arrival.key):
            self._add(request)

    def _plan(self) -> Plan:
        return self._scheduler.schedule(None if self._pausing is None else self._pausing.plan)

    def _go_on_beside(self, pausing: _Pausing, *, is_alone: bool) -> None:
        """Go on with a paused step until interactive requests come, or between their steps for its share of time.

        is_alone: True: this turn has computed no other step.
        """
        if self._scheduler.batch_is_in_the_way:
            self._go_on(pausing)
        elif is_alone:
            self._go_on(pausing, self._mailbox.pause)
        elif pausing.credit_s > 0:
            before_s = pausing.seconds
            self._go_on(pausing, seconds=pausing.credit_s)
            pausing.credit_s -= pausing.seconds - before_s

    def _go_on(self, pausing: _Pausing, pause: Pause | None = None, seconds: float = math.inf) -> None:
        """Go on with a step that pauses, and take its results if it is done.

        pause, seconds: as for `PausableStep.go_on`.
        """
        try:
            results = pausing.step.wait() if pausing.go_on(pause, seconds) else None
        except Exception as error:
            self._pausing = None
            self._give_up(pausing.plan, error)
            return
        if results is not None:
            self._pausing = None
            self._post(self._scheduler.commit(pausing.plan, results))
            self._note_step(pausing.plan, pausing.seconds)

    def _take_flight(self) -> _Flight | None:
        """Return the step launched in the last turn, once the device is halfway through it; None if there is none."""
        flight, self._flight = self._flight, None
        if flight is not None:
            try:
                flight.step.await_half()
            except Exception as error:
                self._give_up(flight.plan, error)
                return None
        return flight

    def _launch(self, plan: Plan, start_s: float) -> Exception | None:
        """Launch a plan; return None, or the error with which the launch failed.

        After an error the plan's requests have to be ended, once the results of the step before are taken.
        """
        try:
            pausable = self._runner.begin(plan) if self._pausing is None and plan.is_batch else None
            step = self._runner.launch(plan) if pausable is None else None
        except Exception as error:
            return error
        self._scheduler.launched(plan)
        if pausable is not None:
            self._pausing = _Pausing(plan, pausable, time.perf_counter() - start_s)
            if self._scheduler.num_waiting:
                self._mailbox.pause.ask()  # an interactive request may have given way a moment ago, and can come back
        elif step is not None:
            self._flight = _Flight(plan, step, start_s)
        return None

    def _land(self, flight: _Flight) -> None:
        try:
            results = flight.step.wait()
        except Exception as error:
            self._give_up(flight.plan, error)
            return
        self._post(self._scheduler.commit(flight.plan, results))
        now_s = time.perf_counter()
        seconds = now_s - max(flight.start_s, self._landed_s)
        self._landed_s = now_s
        self._note_step(flight.plan, seconds)
        if self._pausing is not None:
            self._pausing.credit_s += self._scheduler.paused_share * seconds

    def _note_step(self, plan: Plan, seconds: float) -> None:
        self._statistics.count_step(seconds)
        self._scheduler.note_step(plan, seconds)

    def _give_up(self, plan: Plan, error: Exception) -> None:
        """End the requests of a step that failed.

        Raises the step's error: when the device is lost, so that no other step could succeed.
        """
        if is_device_lost(error):
            raise error
        log.error("a step of %d sequences failed", len(plan.chunks), exc_info=error)
        answer = EngineError("internal", "the engine failed while it computed this request")
        self._fail([chunk.sequence.request_id for chunk in plan.chunks if chunk.sequence.is_alive], answer)

    def _post_stats(self, idle: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._next_stats_s and not idle:
            return
        self._next_stats_s = now_s + STATS_INTERVAL_S
        self._mailbox.post(self._statistics.snapshot())
