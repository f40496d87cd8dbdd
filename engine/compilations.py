"""Requests that wait for their grammar: from its submission to matchers in the scheduler, or the reason why not.

Belongs to the stepping thread. The compilation itself is the compiler's (`engine.grammar.compiler`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

import msgspec

from engine.protocol import EngineError, Grammar
from engine.scheduling.request_group import RequestGroup
from engine.scheduling.scheduler import Scheduler
from engine.sequence import Matcher, MatcherError


class CompilationResult(Protocol):
    """The result of a compilation: a function that makes matchers, one for each choice, or an error."""

    @property
    def request_id(self) -> str:
        """The request that waits for the grammar."""

    @property
    def make_matcher(self) -> Callable[[], Matcher] | None:
        """Makes a matcher of the compiled grammar; None if the compilation failed."""

    @property
    def error(self) -> EngineError | None:
        """The reason why the grammar has no matchers; None if it has."""


class Compiler(Protocol):
    """Compiles grammars beside running steps, and wakes the mailbox when one is ready."""

    def submit(self, request_id: str, grammar: Grammar, tenant: str) -> None:
        """Begin to compile a request's grammar. `ready` returns the result in the stepping thread."""

    def withdraw(self, request_id: str) -> None:
        """Withdraw a grammar that nobody waits for any more; `ready` may still return it."""

    def ready(self) -> Many[CompilationResult]:
        """Return the compilations that ended since the last call."""

    def close(self) -> None:
        """End all compilations."""


class _Waiting(msgspec.Struct, frozen=True):
    group: RequestGroup
    since_s: float


class Compilations:
    """The requests whose grammars are being compiled. compiler: None refuses every grammar."""

    def __init__(
        self, scheduler: Scheduler, compiler: Compiler | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._scheduler = scheduler
        self._compiler = compiler
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}  # by a key of its own: a request id may come again after an abort
        self._num_submitted = 0
        self.num_compiled = 0
        self.num_refused = 0
        self.wait_seconds = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def refusal(self, grammar: Grammar | None) -> EngineError | None:
        """Return why a request with this grammar can't even be queued, or None."""
        if grammar is None or self._compiler is not None:
            return None
        return EngineError("invalid_request", "grammar: this engine compiles none")

    def submit(self, group: RequestGroup, grammar: Grammar) -> None:
        """Submit the grammar of a group that is in the scheduler, and held back there until `settle`."""
        assert self._compiler is not None
        self._num_submitted += 1
        key = f"{self._num_submitted}:{group.request.request_id}"
        self._waiting[key] = _Waiting(group, self._clock())
        self._compiler.submit(key, grammar, group.request.tenant)

    def withdraw(self, group: RequestGroup) -> None:
        """Withdraw the grammars of a request that has ended."""
        for key in [key for key, waiting in self._waiting.items() if waiting.group is group]:
            assert self._compiler is not None
            self._compiler.withdraw(key)
            del self._waiting[key]

    def settle(self) -> list[tuple[str, EngineError]]:
        """Let requests whose grammar is compiled be admitted. Return the ids of those that can't go on, and why."""
        failed: list[tuple[str, EngineError]] = []
        for compiled in self._compiler.ready() if self._waiting and self._compiler is not None else ():
            waiting = self._waiting.pop(compiled.request_id, None)
            if waiting is None or not waiting.group.num_alive:
                continue
            self.wait_seconds += self._clock() - waiting.since_s
            error = self._set_matchers(waiting.group, compiled)
            if error is None:
                self.num_compiled += 1
            else:
                self.num_refused += 1
                failed.append((waiting.group.request.request_id, error))
        return failed

    def close(self) -> None:
        """Stop the compiler and its processes, if there is one."""
        if self._compiler is not None:
            self._compiler.close()

    def _set_matchers(self, group: RequestGroup, compiled: CompilationResult) -> EngineError | None:
        if compiled.make_matcher is None:
            return compiled.error
        try:
            self._scheduler.set_matchers(group, compiled.make_matcher)
        except MatcherError as fault:
            return EngineError("invalid_request", f"grammar: {fault}")
        return None
