"""Measures what clients of a gateway see while its traces go to a collector that answers, is slow, silent, or gone.

All gateways stand at the same time, each with a database and a fake engine of its own, and are measured in turns: a
machine that is busy for a while is so for all of them. Knows nothing of spans.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import msgspec
import uvloop

from gateway.bench.http import connect
from gateway.bench.installation import Installation, free_port, running_installation
from gateway.bench.open_loop import Connections, at_rate
from gateway.bench.overhead import CONNECTIONS_PER_GATEWAY, SWITCH_INTERVAL_S, our_server

ANSWERING, WITHOUT = "collector answers", "no traces"
SLOW_S, SILENT_S = 3.0, 3600.0

COLLECTOR = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(float(sys.argv[1]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def running_collector(answers_after_s: float = 0.0) -> Iterator[str]:
    """Run a collector in a process of its own, and yield its URL.

    answers_after_s: seconds until the collector answers a message.
    """
    command = [sys.executable, "-c", COLLECTOR, str(answers_after_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1/traces"
    finally:
        process.kill()
        process.communicate()


class Round(msgspec.Struct, frozen=True):
    """The latencies and the processor time of one gateway at one rate for some seconds."""

    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """Milliseconds of processor time of the gateway for a request."""
    num_requests: int
    num_errors: int


class Measurement(msgspec.Struct, frozen=True):
    """The measurement of one way to export traces: all of its rounds."""

    rounds: Sequence[Round]

    @property
    def p99_ms(self) -> float:
        """The median of the rounds' 99th percentiles, in milliseconds."""
        return statistics.median(each.p99_ms for each in self.rounds)

    @property
    def worst_p99_ms(self) -> float:
        """The largest of the rounds' 99th percentiles, in milliseconds."""
        return max(each.p99_ms for each in self.rounds)

    def line(self, name: str, rate: float) -> str:
        """Return a line of the table.

        name: the name of the gateway. rate: the requests a second.
        """
        p99s, num = [each.p99_ms for each in self.rounds], sum(each.num_requests for each in self.rounds)
        p50 = statistics.median(each.p50_ms for each in self.rounds)
        cpu = statistics.median(each.cpu_ms for each in self.rounds)
        return (
            f"{name:<22}{rate:>6g}/s  p50 {p50:7.2f} ms  p99 {self.p99_ms:7.2f} ms "
            f"({min(p99s):.2f} to {max(p99s):.2f})  CPU {cpu:.3f} ms a request  {num} requests  "
            f"errors {sum(each.num_errors for each in self.rounds)}\n"
        )


def print_latencies(args: argparse.Namespace) -> bool:
    """Print a line for each way and rate, and PASS or FAIL for each rate; return whether all passed.

    A rate passes if all requests were answered, and if the median 99th percentile with a collector that is slow, silent
    or gone is at most the largest that a round had with one that answers.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    good = True
    with ExitStack() as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        installations = _installations(stack, args)
        for rate in args.rates:
            measurements = runner.run(_measure(installations, rate, args))
            for name, each in measurements.items():
                sys.stdout.write(each.line(name, rate))
            good = _judge(measurements, rate) and good
    return good


def _judge(measurements: Mapping[str, Measurement], rate: float) -> bool:
    bound_ms = measurements[ANSWERING].worst_p99_ms
    late = [name for name, each in measurements.items() if name not in (WITHOUT, ANSWERING) and each.p99_ms > bound_ms]
    failed = [name for name, each in measurements.items() if any(round_.num_errors for round_ in each.rounds)]
    verdict = "FAIL" if late or failed else "PASS"
    why = f"; later: {', '.join(late) or 'none'}; with errors: {', '.join(failed) or 'none'}"
    sys.stdout.write(f"{verdict} at {rate:g}/s: p99 within {bound_ms:.2f} ms whatever the collector does{why}\n")
    return verdict == "PASS"


def _installations(stack: ExitStack, args: argparse.Namespace) -> dict[str, Installation]:
    """Start a gateway for each way to export traces, all at the same time."""
    collector_urls = {
        WITHOUT: "",
        ANSWERING: stack.enter_context(running_collector()),
        f"answers after {SLOW_S:g} s": stack.enter_context(running_collector(SLOW_S)),
        "never answers": stack.enter_context(running_collector(SILENT_S)),
        "is not there": f"http://127.0.0.1:{free_port()}/v1/traces",
    }
    found = {}
    for name, url in collector_urls.items():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lorikeet-bench-")))
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        found[name] = stack.enter_context(
            running_installation(
                folder,
                args.model_dir.absolute(),
                num_gateways=1,
                num_tenants=args.tenants,
                with_limits=True,
                settings_of={"LORIKEET_TRACES_URL": url} if url else {},
            )
        )
    return found


async def _measure(
    installations: Mapping[str, Installation], rate: float, args: argparse.Namespace
) -> dict[str, Measurement]:
    rounds: dict[str, list[Round]] = {name: [] for name in installations}
    for number in range(args.rounds):
        for name in sorted(installations, key=lambda name: random.Random(f"{number}{name}").random()):  # noqa: S311
            rounds[name].append(await _round(installations[name], rate, args, number))
    return {name: Measurement(each) for name, each in rounds.items()}


async def _round(installation: Installation, rate: float, args: argparse.Namespace, number: int) -> Round:
    server, rng = our_server(installation, 1), random.Random(number)  # noqa: S311 - arrivals are no secret
    opened = [await connect("127.0.0.1", port) for port in server.ports for _ in range(CONNECTIONS_PER_GATEWAY)]
    connections = Connections(opened)
    try:
        await asyncio.gather(*(connections.ask(request) for request in islice(server.requests, 4 * args.tenants)))
        before_s = server.cpu_s()
        row = await at_rate(connections, server.requests, rate, args.seconds, rng)
        cpu_ms = (server.cpu_s() - before_s) / (rate * args.seconds) * 1e3
    finally:
        connections.close()
    return Round(row["ms_p50"] or 0.0, row["ms_p99"] or 0.0, cpu_ms, row["requests"], row["errors"])
