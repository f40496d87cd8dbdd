"""Prefix caching: the time that a shared system prompt saves, and that no tenant can see another's prompts by it.

Leaks are looked for as an attacker would: a victim sends a prompt, then the attacker times the first token of the same
prompt and of one that nobody has sent. Within one tenant the times tell the two apart; across tenants they must not.
All probes come in random order, one at a time, into an otherwise idle engine, where timing is at its sharpest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine
from engine.bench.measures import auc, milliseconds
from engine.bench.options import option_help
from engine.bench.report import Row, figure
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config

VICTIM, STRANGER = "victim", "stranger"


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench prefix`."""

    system_tokens: Annotated[int, option_help("tokens of the shared system prompt")] = 512
    user_tokens: Annotated[int, option_help("tokens of each request after the system prompt")] = 32
    repeat: Annotated[int, option_help("system prompts to take the median over")] = 20
    pairs: Annotated[int, option_help("timing probes of each kind, for each tenant")] = 500
    probe_tokens: Annotated[int, option_help("tokens of a probed prompt")] = 64


class Probe(msgspec.Struct, frozen=True):
    """The first token of one prompt: seconds until it came, and the prompt tokens that the engine had cached."""

    ttft_s: float
    cached_tokens: int


class Prober:
    """Sends prompts of which the engine computes one token, and reads the time and the cached tokens of each."""

    def __init__(self, engine: BenchEngine, workload: Workload) -> None:
        self._engine = engine
        self._workload = workload

    def probe(self, prompt: list[int], tenant: str) -> Probe:
        """Return the time of a tenant's first token, and the tokens of the prompt that came from the cache."""
        trace = self._engine.answer(self._workload.request(prompt, 1, tenant=tenant))
        assert trace.final is not None
        return Probe(trace.ttft_s, trace.final.usage.cached_tokens)


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield the rows of the shared system prompt, then the rows of the timing probes."""
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    with BenchEngine(config) as engine:
        prober = Prober(engine, workload)
        prober.probe(workload.prompt(options.system_tokens), VICTIM)
        yield from _shared_system_prompt(prober, workload, options)
    with BenchEngine(config) as engine:
        probes = _paired_probes(Prober(engine, workload), workload, options)
    for (tenant, sent_before), of_kind in probes.items():
        yield {
            "case": "the victim" if tenant == VICTIM else "another tenant",
            "sent_before": sent_before,
            "probes": len(of_kind),
            "ttft_p50_ms": milliseconds([probe.ttft_s for probe in of_kind], 50),
            "ttft_p90_ms": milliseconds([probe.ttft_s for probe in of_kind], 90),
            "cached_tokens": sum(probe.cached_tokens for probe in of_kind),
        }
    yield figure(f"AUC of {options.pairs} pairs within the tenant", _area_under_curve(probes, VICTIM), ">= 0.9")
    yield figure(f"AUC of {options.pairs} pairs across tenants", _area_under_curve(probes, STRANGER), "<= 0.55")
    own_hits = sum(probe.cached_tokens for probe in probes[VICTIM, True])
    foreign_hits = engine.stats.prefix_hit_tokens_total - own_hits
    yield figure("tokens that the engine counts as found across tenants", foreign_hits, "0")


def _shared_system_prompt(prober: Prober, workload: Workload, options: Options) -> Iterator[Row]:
    """Yield rows of the first request with a system prompt, the second, and another tenant's first."""
    kinds: dict[str, list[Probe]] = {"first": [], "second": [], "first of another tenant": []}
    for _ in range(options.repeat):
        system = workload.prompt(options.system_tokens)
        for kind, tenant in zip(kinds, (VICTIM, VICTIM, STRANGER), strict=True):
            kinds[kind].append(prober.probe(system + workload.prompt(options.user_tokens), tenant))
    for kind, probes in kinds.items():
        yield {
            "case": kind,
            "requests": len(probes),
            "ttft_p50_ms": milliseconds([probe.ttft_s for probe in probes], 50),
            "cached_tokens": sum(probe.cached_tokens for probe in probes),
        }
    ratio = median(p.ttft_s for p in kinds["second"]) / median(p.ttft_s for p in kinds["first"])
    yield figure("TTFT of the second request to the first", ratio, "<= 0.3")


def _paired_probes(prober: Prober, workload: Workload, options: Options) -> dict[tuple[str, bool], list[Probe]]:
    """Return the probes, by the tenant that probes and by whether the victim had sent the prompt before."""
    shuffle = random.Random(0).shuffle  # noqa: S311
    kinds = [(tenant, sent_before) for tenant in (VICTIM, STRANGER) for sent_before in (True, False)]
    probes: dict[tuple[str, bool], list[Probe]] = {kind: [] for kind in kinds}
    known = workload.prompt(options.probe_tokens)
    prober.probe(known, VICTIM)
    for _ in range(options.pairs):
        unknown = {tenant: workload.prompt(options.probe_tokens) for tenant in (VICTIM, STRANGER)}
        shuffle(kinds)
        for tenant, sent_before in kinds:
            prompt = known if sent_before else unknown[tenant]
            probes[tenant, sent_before].append(prober.probe(prompt, tenant))
        known = unknown[VICTIM]  # by now the victim has sent it
    return probes


def _area_under_curve(probes: dict[tuple[str, bool], list[Probe]], tenant: str) -> float:
    """Return how well the times tell the prompts apart, whichever way they differ: slower tells as much as faster."""
    known, unknown = ([probe.ttft_s for probe in probes[tenant, sent_before]] for sent_before in (True, False))
    return max(auc(known, unknown), auc(unknown, known))
