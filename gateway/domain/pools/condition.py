"""The condition of a pool in one word and one sentence, from its rows: what operators see first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.domain.pools.plan import MAX_FAILURES
from gateway.domain.pools.states import ReplicaState, RevisionState

PoolState = Literal["starting", "ready", "changing", "scaling", "draining", "stopped", "failed"]
"""The states of a pool.

starting: no revision has served yet.
ready: as many replicas as wanted take requests.
changing: another revision is to take the place of the one that serves.
scaling: fewer or more replicas run than are wanted.
draining: none is wanted any more, and the last ones end their requests.
stopped: none runs, and none is wanted.
failed: nothing serves, and nothing will without a change."""


class ReplicaStanding(msgspec.Struct, frozen=True):
    """One replica that has not been stopped, as far as the condition of its pool depends on it."""

    revision: int
    state: ReplicaState
    why: str
    """The reason for the state, in words; "" where there is none."""
    num_failures: int
    """Failures in a row."""
    is_managed: bool
    """True where an agent runs the replica; one that somebody else runs is not counted by `num_replicas`."""


class Condition(msgspec.Struct, frozen=True):
    """The condition of a pool, in one word and one sentence."""

    state: PoolState
    why: str
    """A sentence with the numbers or the reason; "" where the state alone is enough."""
    num_ready: int
    """Replicas of any revision that take requests."""
    num_wanted: int
    """Replicas that are wanted, those that somebody else runs included."""


def condition_of(
    *,
    num_replicas: int,
    revision: int | None,
    wanted_revision: int,
    wanted_state: RevisionState,
    wanted_why: str,
    replicas: Sequence[ReplicaStanding],
    shortage: str = "",
) -> Condition:
    """Return the condition of a pool.

    wanted_*: the number, the state and the reason of the wanted revision.
    replicas: the replicas that have not been stopped.
    shortage: a sentence that says why wanted replicas find no room (`gateway.domain.pools.shortage`).
    """
    ready = [each for each in replicas if each.state == "ready"]
    external = sum(not each.is_managed for each in replicas)

    def found(state: PoolState, why: str) -> Condition:
        return Condition(state, why, len(ready), num_replicas + external)

    failing = next((each for each in replicas if each.state == "failed"), None)
    is_hopeless = failing is not None and failing.num_failures >= MAX_FAILURES
    if not ready and wanted_state == "failed":
        return found("failed", wanted_why)
    if num_replicas + external == 0:
        if replicas:
            return found("draining", f"{_replicas(len(replicas))} end{'s' * (len(replicas) == 1)} the last requests.")
        return found("stopped", "No replica is wanted.")
    if not ready and is_hopeless:
        assert failing is not None
        return found("failed", _with_full_stop(f"Replicas fail again and again: {failing.why}"))
    trouble = _with_full_stop(f" A replica failed and is started again: {failing.why}") if failing else ""
    if shortage:
        trouble = f" {shortage}{trouble}"
    if revision != wanted_revision:
        return found(
            "starting" if revision is None else "changing",
            _progress(num_replicas, wanted_revision, wanted_state, wanted_why, replicas) + trouble,
        )
    num_wanted, num_good = num_replicas + external, len(ready)
    if num_good < num_wanted:
        away = next((each.why for each in replicas if not each.is_managed and each.state == "loading"), "")
        reason = f": {away}" if away else ""
        return found(
            "scaling",
            _with_full_stop(f"{num_good} of {num_wanted} replicas {_is_or_are(num_good)} ready{reason}") + trouble,
        )
    if len(replicas) > num_wanted:
        return found("scaling", f"{len(replicas)} replicas run, {num_wanted} {_is_or_are(num_wanted)} wanted.{trouble}")
    return found("ready", trouble.strip())


def _progress(
    num_replicas: int, wanted: int, state: RevisionState, why: str, replicas: Sequence[ReplicaStanding]
) -> str:
    """Return a sentence on the progress of the wanted revision.

    num_replicas: the replicas that the pool is to run. wanted: the number of the revision. why: the reason for its
    state.
    """
    if state == "preparing":
        return _with_full_stop(f"Revision {wanted} is being prepared{f': {why}' if why else ''}")
    if state == "failed":
        return _with_full_stop(f"Revision {wanted} failed: {why}")
    mine = [each for each in replicas if each.revision == wanted]
    num_ready = sum(each.state == "ready" for each in mine)
    loading = next((each.why for each in mine if each.state == "loading" and each.why), "")
    return _with_full_stop(
        f"{num_ready} of {num_replicas} replicas of revision {wanted} {_is_or_are(num_ready)} ready"
        f"{f'; one loads: {loading}' if loading else ''}"
    )


def _with_full_stop(text: str) -> str:
    """Return a text with a full stop at its end, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number != 1)}"


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"
