"""The process that tries grammars out: one a line on stdin, one verdict a line on stdout.

Compiling a hostile grammar can take minutes or all memory, and nothing stops it from inside. So it happens here first,
under limits that the kernel enforces: what exceeds them ends this process, and nothing else. Once the vocabulary is
read, a filter of system calls leaves it its memory, its clock and its two pipes. Started by `compiler`.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from adapters.sandbox import seccomp
from engine.grammar.json_schema import Unenforceable
from engine.grammar.limits import (
    COMPILE_BYTES,
    COMPILE_CPU_S,
    COMPILE_STACK_BYTES,
    COMPILE_WALL_S,
    COMPILER_NICENESS,
    PARSER_LIMITS,
)
from engine.grammar.source import error_message, lark_source
from engine.grammar.tool_calls import call_parts
from engine.grammar.vocabulary import load_vocabulary
from engine.protocol import Grammar


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Either text, which compiles within the limits, or the reason why there is none."""

    text: str = ""
    """The grammar as llguidance's text."""
    error: str | None = None
    label: str = ""
    """The client's name of the part at fault."""


def main() -> None:
    """Judge the grammars that come by stdin, and end with it.

    Arguments: the model's folder, its vocabulary's size, its end-of-sequence ids.
    """
    model_dir, vocab_size, *eos = sys.argv[1:]
    os.nice(COMPILER_NICENESS)
    vocabulary = load_vocabulary(Path(model_dir), int(vocab_size), tuple(map(int, eos)))
    bound_memory()
    seccomp.install(seccomp.TIMERS)
    for line in sys.stdin.buffer:
        with bounded_time():
            verdict = judge(vocabulary, msgspec.json.decode(line, type=Grammar))
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()


def judge(vocabulary: LLTokenizer, grammar: Grammar) -> Verdict:
    """Compile a grammar, and compute its first mask: an empty language and a hopeless grammar show there."""
    try:
        text = lark_source(grammar)
    except Unenforceable as error:
        return Verdict(error=str(error), label=error.label)
    whole = _fault(vocabulary, text)
    if not whole:
        return Verdict(text)
    if grammar.kind == "tool_calls":
        for label, part in call_parts(grammar.source):
            if fault := _fault(vocabulary, part):
                return Verdict(error=error_message(grammar, fault), label=label)
    return Verdict(error=error_message(grammar, whole))


def _fault(vocabulary: LLTokenizer, text: str) -> str:
    """Return llguidance's error; "" if it has none."""
    matcher = LLMatcher(vocabulary, text, limits=PARSER_LIMITS, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else ""


@contextmanager
def bounded_time() -> Iterator[None]:
    """End the process by SIGPROF or SIGALRM when the block takes too long."""
    signal.setitimer(signal.ITIMER_PROF, COMPILE_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, COMPILE_WALL_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def bound_memory() -> None:
    """Bound the memory that the process may take from now on to COMPILE_BYTES more, and its stack to a small one."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + COMPILE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_STACK, (COMPILE_STACK_BYTES, COMPILE_STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
