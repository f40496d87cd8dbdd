"""Measure what experiments add to the path of a request, in process: everything between headers and the meter tag.

Runs the gateway's own parts with 1,000 experiments in the project, and no network, database or engine. Times are of
this process's CPU, so that other work on the machine does not count.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry, Counter

from adapters.inspection import BaseShape
from adapters.ref import AdapterRef
from gateway.domain.adapters.defaults import NO_DEFAULTS
from gateway.domain.experiments.allocation import first_split
from gateway.domain.experiments.assignment import NUM_BUCKETS
from gateway.domain.experiments.feedback.vote_ids import signed_id
from gateway.domain.routing.bases import Base, Bases
from gateway.domain.tenancy.principal import Principal
from gateway.experiments.notes import Notes
from gateway.http.request.call import Call
from gateway.metering.tag import encode_tag
from gateway.openai.chat.wire import ChatCompletionRequest
from gateway.openai.shared.context import context_of
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.pipeline import Pipeline
from gateway.routing.experiments import RoutedArm, RunningExperiment
from gateway.routing.policies import RoutedPolicy
from gateway.routing.resolve import Resolver
from gateway.routing.route import Route, RoutedAdapter

NUM_EXPERIMENTS = 1_000
NUM_REQUESTS, NUM_ROUNDS = 5_000, 7
HEADERS = [(f"header-{number}".encode(), b"value") for number in range(12)]
PRINCIPAL = Principal("org", "proj", "key", frozenset({"inference"}))


class _Meter:
    has_room, journal_id = True, "0" * 32


class _Pool:
    serving = None


async def _no_key(project_id: str) -> bytes:
    raise AssertionError("nothing is looked up")


def _pipeline() -> Pipeline:
    """Return a pipeline that remembers an adapter, and an experiment under each of 1,000 names."""
    bases = Bases([Base("base", "0" * 64, BaseShape({}, 1))])
    resolver = Resolver(cast("Any", None), bases, _no_key)
    ref = AdapterRef("proj", "bot", 1, "a" * 64)
    adapter = RoutedAdapter("adpt", ref, ref.key, NO_DEFAULTS, cast("Any", None), is_shared=False)
    plain = Route("base:bot", "base:bot", "base", adapter)
    resolver._cache_route("proj", plain.id, plain)  # as if it had been looked up
    for number in range(NUM_EXPERIMENTS):
        split = first_split(number.to_bytes(32, "big"), b"l" * 32, range(NUM_BUCKETS), (1, 1))
        name = f"model-{number}"
        route = msgspec.structs.replace(plain, id=name)
        arms = (RoutedArm("control", "base:bot", route), RoutedArm("warm", "base:bot", route))
        experiment = RunningExperiment(f"exp-{number}", f"test-{number}", name, 1, "user", arms, split, b"k" * 32)
        resolver._cache_route("proj", name, experiment)
    notes = Notes(cast("Any", None), Counter("lost", "", registry=CollectorRegistry()))
    pools, meter = cast("Any", {"base": _Pool()}), cast("Any", _Meter())
    none = cast("Any", None)
    return Pipeline(
        resolver, pools, meter, none, none, notes, none, none, none, none, default_max_tokens=16, max_shadows=0
    )


async def _request(pipeline: Pipeline, model: str, unit: str, *, has_fields: bool) -> None:
    """Take one request through the steps of the pipeline in which experiments have a part.

    has_fields: True: the request has the fields that experiments read; False: it is one outside of experiments.
    """
    call = Call("req_" + "a" * 24, 0)
    body = ChatCompletionRequest(model=model, messages=[], user=unit)
    fields = ExperimentFields(HEADERS, PRINCIPAL, body) if has_fields else None
    context = context_of(call, PRINCIPAL, model, "/v1/chat/completions", experiment_fields=fields)
    placing = pipeline._placing
    found = await placing.find(context)
    assert not isinstance(found, RoutedPolicy)
    exposure = placing.exposure(context, found)
    placing.expose(context, exposure)
    placed = placing.placed(context, found, exposure)
    tag = pipeline._preparation._tag(context, placed.route, "default", placed.exposure, is_delivered=True)
    encode_tag(tag)
    if placed.exposure is not None:
        signed_id(placed.project_key, call.request_id)


async def _median_us(ask: Callable[[int], Awaitable[None]]) -> float:
    """Return the median microseconds of CPU time that one request takes.

    ask: takes the request of a number through its steps.
    """
    rounds = []
    for round_ in range(NUM_ROUNDS):
        started = time.process_time()
        for number in range(NUM_REQUESTS):
            await ask(round_ * NUM_REQUESTS + number)
        rounds.append((time.process_time() - started) / NUM_REQUESTS)
    return statistics.median(rounds) * 1e6


async def _path_us() -> dict[str, float]:
    pipeline = _pipeline()

    def asked(model: str, *, has_fields: bool = True, num_units: int = 1_000_000) -> Callable[[int], Awaitable[None]]:
        return lambda number: _request(
            pipeline,
            model.format(number % NUM_EXPERIMENTS),
            f"user-{number % num_units}@example.com",
            has_fields=has_fields,
        )

    before = await _median_us(asked("base:bot", has_fields=False))
    figures = {
        "a request that names no experiment": asked("base:bot"),
        "a request to one of 1,000 experiments, of a unit that was seen": asked("model-{}", num_units=100),
        "a request to an experiment, of a new unit": asked("model-7"),
    }
    return {name: await _median_us(ask) - before for name, ask in figures.items()}


def path_us() -> dict[str, float]:
    """Return the microseconds of CPU time that experiments add to a request, from its headers to its meter tag."""
    return asyncio.run(_path_us())
