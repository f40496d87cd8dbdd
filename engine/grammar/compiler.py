"""The queue of grammars to compile, beside the stepping thread. It knows no sequences and no scheduler.

A thread takes one grammar at a time, of each tenant in turn. A worker process tries it out under hard limits (see
`worker`), and is replaced when a grammar kills it; only what it accepts is compiled in this process, which llguidance
does without holding up the other threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.json_schema import Unenforceable
from engine.grammar.limits import (
    CACHED_GRAMMARS,
    COMPILE_CPU_S,
    COMPILER_NICENESS,
    COMPILER_STACK_BYTES,
    MAX_SOURCE_BYTES,
    MAX_WAITING_PER_TENANT,
    PARSER_LIMITS,
)
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.thinking import ThinkingMatcher, check_thinking
from engine.grammar.vocabulary import NoVocabulary, load_vocabulary
from engine.grammar.worker import Verdict
from engine.protocol import EngineError, Grammar, Thinking
from engine.sequence import Matcher

log = logging.getLogger(__name__)

# This very source tree, isolated from the engine's folder and variables.
_ROOT = Path(__file__).parents[2]
_START = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from engine.grammar.worker import main; main()"
_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
"""The worker's environment, without the engine's secrets: a program that breaks out of a grammar finds no credentials
of buckets or hubs."""

_INHERITED = ("LD_LIBRARY_PATH",)  # where a Python outside of the system's folders finds its own libraries

SENT_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # no limit of the worker ends it by these signals


class Compiled(msgspec.Struct, frozen=True):
    """The end of one compilation."""

    request_id: str
    make_matcher: Callable[[], Matcher] | None
    """The function that makes a new matcher at the grammar's start for each choice; None where there is an error."""
    error: EngineError | None


class _Job(msgspec.Struct, frozen=True):
    """A grammar that waits to be compiled for a request."""

    request_id: str
    tenant: str
    grammar: Grammar


class GrammarCompiler:
    """Compiles grammars beside the stepping thread, to which submit, withdraw, ready and close belong.

    `wake` is called when something is ready. Loading the vocabulary holds up every thread, so it happens here and not
    with the first grammar. A model without a usable vocabulary is served; its grammars are refused.
    """

    def __init__(
        self, model_dir: str | Path, vocab_size: int, eos_token_ids: tuple[int, ...], wake: Callable[[], None]
    ) -> None:
        self._wake = wake
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._obstacle = ""
        try:
            self._vocabulary = load_vocabulary(Path(model_dir), vocab_size, eos_token_ids)
        except NoVocabulary as reason:
            log.warning("grammars will be refused: %s", reason)
            self._obstacle = str(reason)
        self._worker = _Worker([str(Path(model_dir).absolute()), str(vocab_size), *map(str, eos_token_ids)])
        self._cache: OrderedDict[tuple[str, Grammar], LLMatcher | EngineError] = OrderedDict()  # the thread's own
        self._ready: queue.SimpleQueue[Compiled] = queue.SimpleQueue()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by tenant; the first is served next
        self._changed = threading.Condition()
        self._closed = False
        self._thread = _start_thread(self._compile_jobs)

    def submit(self, request_id: str, grammar: Grammar, tenant: str) -> None:
        """Submit a request's grammar.

        `ready` will return the outcome, unless the grammar is withdrawn before its turn.
        """
        with self._changed:
            jobs = self._waiting.setdefault(tenant, deque())
            if len(jobs) < MAX_WAITING_PER_TENANT:
                jobs.append(_Job(request_id, tenant, grammar))
                self._changed.notify()
                return
        full = EngineError("queue_full", f"{MAX_WAITING_PER_TENANT} grammars wait to be compiled", COMPILE_CPU_S)
        self._ready.put(Compiled(request_id, None, full))
        self._wake()

    def withdraw(self, request_id: str) -> None:
        """Withdraw a grammar that nobody waits for any more.

        `ready` may still return it, if its turn has come already.
        """
        with self._changed:
            for tenant, jobs in list(self._waiting.items()):
                remaining = deque(job for job in jobs if job.request_id != request_id)
                if remaining:
                    self._waiting[tenant] = remaining
                else:
                    del self._waiting[tenant]

    def ready(self) -> list[Compiled]:
        """Return the grammars that were compiled or refused since the last call."""
        compiled = []
        while not self._ready.empty():
            compiled.append(self._ready.get())
        return compiled

    def close(self) -> None:
        """Drop the grammars that wait, and end the thread and the worker."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
        self._worker.kill()
        self._thread.join()

    def _compile_jobs(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILER_NICENESS)  # of this thread alone
        if self._vocabulary is not None:
            with contextlib.suppress(OSError):  # then the first grammar's error says why
                self._worker.start()
        while (job := self._next_job()) is not None:
            try:
                outcome = self._compile(job)
            except Exception:  # a fault is this grammar's alone
                log.exception("the grammar of request %s could not be compiled", job.request_id)
                outcome = EngineError("internal", "the engine could not compile the grammar")
            if isinstance(outcome, EngineError):
                self._ready.put(Compiled(job.request_id, None, outcome))
            else:
                self._ready.put(Compiled(job.request_id, self._matchers_of(outcome, job.grammar.thinking), None))
            self._wake()
        self._worker.end()

    def _next_job(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            tenant, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[tenant] = jobs  # behind the other tenants
            return job

    def _compile(self, job: _Job) -> LLMatcher | EngineError:
        """Compile a grammar, or take the outcome from the cache if this tenant has sent it before.

        Outcomes are not shared between tenants: a fast answer would tell that another tenant uses the grammar.
        """
        if job.grammar.thinking is not None:
            try:
                check_thinking(job.grammar.thinking, self._vocab_size)
            except Unenforceable as error:
                return _refusal(job.grammar, str(error))
        grammar = msgspec.structs.replace(job.grammar, thinking=None)
        key = (job.tenant, grammar)
        outcome = self._cache.pop(key, None) or self._try_compile(grammar)
        self._cache[key] = outcome
        while len(self._cache) > CACHED_GRAMMARS:
            self._cache.popitem(last=False)
        return outcome

    def _try_compile(self, grammar: Grammar) -> LLMatcher | EngineError:
        if self._vocabulary is None:
            return _refusal(grammar, f"grammars can't be enforced: {self._obstacle}")
        if len(grammar.source) > MAX_SOURCE_BYTES:
            return _refusal(grammar, f"longer than {MAX_SOURCE_BYTES} bytes")
        verdict = self._worker.judge(grammar)
        if verdict.error is not None:
            return _refusal(grammar, verdict.error, verdict.label)
        matcher = LLMatcher(self._vocabulary, verdict.text, limits=PARSER_LIMITS, log_level=0)
        matcher.compute_bitmask()  # so that every copy starts with this work done
        return _refusal(grammar, matcher.get_error()) if matcher.is_error() else matcher

    def _matchers_of(self, prototype: LLMatcher, thinking: Thinking | None) -> Callable[[], Matcher]:
        def make_matcher() -> Matcher:
            matcher = GrammarMatcher(prototype.deep_copy(), self._eos)
            return matcher if thinking is None else ThinkingMatcher(matcher, thinking, self._eos)

        return make_matcher


class _Worker:
    """The worker process, started again after its end."""

    def __init__(self, arguments: list[str]) -> None:
        self._command = [sys.executable, "-I", "-c", _START, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> subprocess.Popen[bytes]:
        """Start the worker unless it runs; it then reads the vocabulary before its first grammar comes."""
        if self._process is None:
            # In a process group of its own: a signal that interrupts the engine must not look like a grammar that kills
            # its worker. Not in a session: Linux gives each an equal share of the processors, and niceness counts
            # within one alone.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,
                env=_ENVIRONMENT | {name: os.environ[name] for name in _INHERITED if name in os.environ},
                cwd="/",
            )
        return self._process

    def judge(self, grammar: Grammar) -> Verdict:
        """Ask the worker for its verdict; that it was killed is a verdict too.

        Raises RuntimeError: when the worker failed by itself.
        """
        answer = self._ask(grammar)
        status = 0 if answer else self.end()
        if -status in SENT_FROM_OUTSIDE and not self._closed:
            log.info("the grammar worker was killed; its grammar is tried again")
            answer = self._ask(grammar)
            status = 0 if answer else self.end()
        if answer:
            return msgspec.json.decode(answer, type=Verdict)
        return Verdict(error=_cause_of_death(status))

    def _ask(self, grammar: Grammar) -> bytes:
        """Send a grammar and return the worker's answer: a whole line, or nothing if the worker has ended."""
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        return answer if answer.endswith(b"\n") else b""

    def kill(self) -> None:
        """Kill the worker for good, from any thread; a caller that waits for a verdict gets one."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> int:
        """End the worker, and return its exit status, which is negative for a signal."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait()


def _cause_of_death(status: int) -> str:
    if status >= 0:
        raise RuntimeError(f"the grammar worker ended with status {status}")
    log.info("a grammar ended the grammar worker by signal %d", -status)
    if -status in (signal.SIGPROF, signal.SIGALRM):
        return f"takes more than {COMPILE_CPU_S:g} s to compile"
    return "too complex to compile"


def _refusal(grammar: Grammar, reason: str, label: str = "") -> EngineError:
    return EngineError("invalid_request", f"{label or grammar.kind}: {reason}", label=label)


def _start_thread(target: Callable[[], None]) -> threading.Thread:
    """Start a thread with a larger stack than the worker's: grammars that overflow a stack end the worker first."""
    before = threading.stack_size(COMPILER_STACK_BYTES)
    try:
        thread = threading.Thread(target=target, name="grammar-compile", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
