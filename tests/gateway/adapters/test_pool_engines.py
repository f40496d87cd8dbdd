"""A version is tried by any pool of its base that can, not by the first one alone."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from adapters.report import BaseShape
from engine.protocol import AdapterProbe
from gateway.adapters.service import PoolEngines
from gateway.backends.base import Model
from gateway.backends.pool import ManagedBackend, Pool, PoolRevision, Replica
from gateway.domain.errors import InvalidRequest, Overloaded
from gateway.domain.routing.bases import Base, Bases
from tests.gateway.backends.test_pool import CountingBackend

DIGEST = "d" * 64
FOUND = AdapterProbe(0.1, 1, 1, 0.5)


class ProbingBackend(CountingBackend):
    """A backend that probes adapters, or raises."""

    def __init__(self, outcome: AdapterProbe | Exception, *, is_ready: bool = True) -> None:
        super().__init__(is_ready=is_ready)
        self.outcome = outcome
        self.num_probes = 0

    async def probe(self, key: str) -> AdapterProbe:
        self.num_probes += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def engines(*backends: ProbingBackend) -> PoolEngines:
    """Return the engines of pools of one base, each with one backend."""
    pools = {}
    for number, backend in enumerate(backends):
        replica = Replica(f"r{number}", cast("ManagedBackend", backend))
        pools[f"p{number}"] = Pool(f"p{number}", PoolRevision(f"p{number}", cast("Model", None), [replica]), created=0)
    return PoolEngines(pools, Bases([Base(name, DIGEST, BaseShape({}, 0)) for name in pools]))


async def test_another_pool_tries_what_the_first_one_cannot() -> None:
    unable, able = ProbingBackend(Overloaded("it was started without it")), ProbingBackend(FOUND)
    assert await engines(unable, able).probe(DIGEST, "key") is FOUND
    assert (unable.num_probes, able.num_probes) == (1, 1)


async def test_the_refusal_of_one_pool_is_the_answer() -> None:
    refusing, other = ProbingBackend(InvalidRequest("its rank is too high")), ProbingBackend(FOUND)
    with pytest.raises(InvalidRequest):
        await engines(refusing, other).probe(DIGEST, "key")
    assert other.num_probes == 0


async def test_where_no_pool_can_try_a_version_the_answer_says_so() -> None:
    away = ProbingBackend(FOUND, is_ready=False)
    with pytest.raises(Overloaded, match="No engine"):
        await engines(away).probe(DIGEST, "key")
    with pytest.raises(Overloaded, match="started without"):
        await engines(ProbingBackend(Overloaded("it was started without it")), away).probe(DIGEST, "key")
    assert msgspec.structs.asdict(await engines(away, ProbingBackend(FOUND)).probe(DIGEST, "key"))["num_tokens"] == 1
