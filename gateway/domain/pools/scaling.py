"""The number of replicas that a pool with bounds shall run, by the load that its gateways see.

Pure: no clock, no rows, no engines. As many more replicas as the load needs come at once, unless none is ready yet:
then the first one shows that replicas start at all. One replica less comes after nothing has needed it for a whole
window, and the next one some time later. More replicas are wanted above one share of the places in use, and fewer only
below a lower share: the gap keeps a constant load from changing anything. Knows nothing of the room on hosts: the
replicas that are wanted here are started where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

BUSY = 0.8
"""The share of all places, or of all memory for keys and values, that is in use when replicas are added."""
SPARE = 0.6
"""The highest share that the remaining replicas may have in use for one replica to be removed."""
LONGEST_WAIT_S = 2.0
"""The age in seconds of the oldest request without a token at which a replica is added if requests wait."""
RECENT_S = 10.0
"""Seconds after a request for which a pool is in use."""
DOWN_AFTER_S = 300
"""Seconds for which a replica must not have been needed before it is removed; bounds may set another number."""
STEP_S = 30.0
"""Seconds between the removals of two replicas."""
COOL_DOWN_S = 30.0
"""Seconds after a removal in which no replica is added, except the first one of a pool that has none."""
MOST_DOWN_AFTER_S = 3600.0
"""The longest window in seconds, for a pool that repeatedly needs replicas again that were removed."""
PEAK_S = 10.0
"""Seconds for which an unchanged need is not recorded again."""
GAP_S = 60.0
"""Seconds without a decision after which recorded needs are forgotten."""

NEVER_S = 1e9
"""The number of seconds that means never: JSON has no infinite numbers."""

_ROUNDING = 1e-9


class Bounds(msgspec.Struct, frozen=True):
    """The bounds that an operator sets."""

    min_replicas: int
    max_replicas: int
    down_after_s: float = float(DOWN_AFTER_S)
    """Seconds for which a replica must not have been needed before it is removed."""


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of a pool as one gateway sees it. The engines' own numbers are the same for all gateways."""

    num_ready: int = 0
    """Replicas that take requests of this gateway."""
    places: int = 0
    """Choices that the ready replicas compute at once."""
    num_running: int = 0
    """Choices that engines compute for requests of all gateways."""
    num_waiting: int = 0
    """Choices that wait at engines for requests of all gateways."""
    num_own: int = 0
    """Requests of this gateway that run at servers which do not report their load."""
    kv_share: float = 0.0
    """The share of the engines' memory for keys and values that is in use, on average."""
    oldest_wait_s: float = 0.0
    """The age in seconds of this gateway's oldest request that has no token yet."""
    num_held: int = 0
    """Requests at this gateway that wait for the pool's first replica."""
    idle_s: float = NEVER_S
    """Seconds since this gateway's last request."""


class PoolSnapshot(msgspec.Struct, frozen=True):
    """A pool at one instant."""

    num_replicas: int
    """Replicas that are wanted."""
    num_ready: int
    """Replicas of the revision that serves, by their rows."""
    load: Load | None
    """The load over all gateways; None where no gateway has reported it."""
    is_changing: bool = False
    """True if another revision is taking the place of the one that serves."""


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state that is kept from one decision to the next. Times are in seconds of one clock."""

    changed_at_s: float
    """The time of the last change of the number of replicas, or of the first decision."""
    last: Literal["", "up", "down"] = ""
    """The direction of the last change; "" before the first."""
    down_after_s: float = 0.0
    """The present length of the window in seconds; 0: the one that the bounds set."""
    peaks: tuple[tuple[float, int], ...] = ()
    """Pairs (time, need) of the time at which each need was last seen.

    Needs decrease, so the first pair of a window has its maximum.
    """
    places_each: float = 0.0
    """The places of one replica, as last observed; 0 before a replica was ready."""
    woken_at_s: float | None = None
    """The time at which a first replica was requested for a pool without any; None once one is ready."""
    start_s: float | None = None
    """The seconds that the first replica took to become ready when that was last measured."""


class Decision(msgspec.Struct, frozen=True):
    """The number of replicas that shall run, and the reason as a sentence."""

    num_replicas: int
    why: str
    memory: Memory
    """The state for the next decision."""


def combined_load(loads: Sequence[Load]) -> Load | None:
    """Return the sum of the loads that gateways reported for a pool; None where none reported any."""
    if not loads:
        return None
    ready = max(loads, key=lambda each: each.num_ready)  # the gateway that sees most of the pool
    return Load(
        num_ready=ready.num_ready,
        places=ready.places,
        num_running=max(each.num_running for each in loads),
        num_waiting=max(each.num_waiting for each in loads),
        num_own=sum(each.num_own for each in loads),
        kv_share=max(each.kv_share for each in loads),
        oldest_wait_s=max(each.oldest_wait_s for each in loads),
        num_held=sum(each.num_held for each in loads),
        idle_s=min(each.idle_s for each in loads),
    )


def decide(bounds: Bounds, memory: Memory | None, snapshot: PoolSnapshot, now_s: float) -> Decision:
    """Return the number of replicas that shall run from now on, always within the bounds.

    memory: the memory that the decision before returned; None where there was no decision before.
    """
    memory = _refreshed(memory, snapshot, now_s)
    number = snapshot.num_replicas
    within = min(max(number, bounds.min_replicas), bounds.max_replicas)
    if within != number:
        bound = "fewest" if within > number else "most"
        new_memory = msgspec.structs.replace(memory, changed_at_s=now_s, last="", peaks=())
        return Decision(
            within, f"{_replicas(within)} {_is_or_are(within)} the {bound} that the pool may run.", new_memory
        )
    if snapshot.load is None:
        why = "No request waits for a replica." if not number else "No gateway tells the load of the pool."
        return Decision(number, why, memory)
    load = snapshot.load
    if number == 0:
        return _wake(memory, load, now_s)
    need = min(max(_need(load, memory, SPARE), bounds.min_replicas), bounds.max_replicas)
    if load.num_waiting or load.num_held:
        need = max(need, number)
    memory = msgspec.structs.replace(memory, peaks=_with_peak(memory.peaks, need, now_s))
    wanted, reason = _wanted_number(load, memory, snapshot)
    if wanted > number:
        return _scale_up(bounds, memory, snapshot, wanted, reason, now_s)
    return _fewer(bounds, memory, snapshot, reason, now_s)


def _wake(memory: Memory, load: Load, now_s: float) -> Decision:
    """Decide for one replica in a pool that has none if a request waits for it, however many requests wait."""
    if not load.num_held:
        return Decision(0, "No request waits for a replica.", memory)
    new_memory = msgspec.structs.replace(memory, changed_at_s=now_s, last="up", peaks=(), woken_at_s=now_s)
    return Decision(1, f"{_requests(load.num_held)} wait{_s(load.num_held)} for a first replica.", new_memory)


def _wanted_number(load: Load, memory: Memory, snapshot: PoolSnapshot) -> tuple[int, str]:
    """Return the number of replicas that the load needs, and a clause that describes the load."""
    wanted, demand = _need(load, memory, BUSY), _demand(load)
    places = f" on {load.places} places" if load.places else ""
    reason = f"{demand - load.num_waiting - load.num_held} requests run{places}"
    if load.num_waiting or load.num_held:
        reason += f", {load.num_waiting + load.num_held} wait"
    if load.kv_share:
        reason += f", {load.kv_share:.0%} of the KV cache is in use"
    is_late = load.num_waiting > 0 and load.oldest_wait_s >= LONGEST_WAIT_S
    if is_late and snapshot.num_ready >= snapshot.num_replicas:
        wanted = max(wanted, snapshot.num_replicas + 1)
        reason += f", the oldest for {load.oldest_wait_s:.0f} s"
    if missing := max(snapshot.num_replicas - snapshot.num_ready, 0):
        reason += f", {_replicas(missing)} {_is_or_are(missing)} about to be ready"
    return wanted, reason


def _scale_up(
    bounds: Bounds, memory: Memory, snapshot: PoolSnapshot, wanted: int, reason: str, now_s: float
) -> Decision:
    """Decide for more replicas, unless replicas are still starting or one was stopped just now.

    wanted: the number of replicas that the load needs.
    """
    number, target = snapshot.num_replicas, min(wanted, bounds.max_replicas)
    if target <= number:
        return Decision(
            number, f"{reason}: {_replicas(number)} {_is_or_are(number)} the most that the pool may run.", memory
        )
    if not snapshot.num_ready:
        return Decision(number, f"{reason}: more come once one is ready.", memory)
    since_s = now_s - memory.changed_at_s
    if memory.last == "down" and since_s < COOL_DOWN_S:
        return Decision(number, f"{reason}: a replica went {since_s:.0f} s ago, and none comes yet.", memory)
    window_s = memory.down_after_s or bounds.down_after_s
    doubled_s = memory.down_after_s if memory.last == "up" else 0.0
    is_regret = memory.last == "down" and since_s < 2 * window_s
    down_after_s = min(2 * window_s, max(MOST_DOWN_AFTER_S, bounds.down_after_s)) if is_regret else doubled_s
    new_memory = msgspec.structs.replace(memory, changed_at_s=now_s, last="up", down_after_s=down_after_s)
    return Decision(target, f"{reason}: {_replicas(target)} {_is_or_are(target)} wanted.", new_memory)


def _fewer(bounds: Bounds, memory: Memory, snapshot: PoolSnapshot, reason: str, now_s: float) -> Decision:
    """Decide for one replica less if the present number was not needed for a whole window."""
    number, window_s = snapshot.num_replicas, memory.down_after_s or bounds.down_after_s
    peaks = tuple(each for each in memory.peaks if now_s - each[0] <= window_s + PEAK_S)
    memory = msgspec.structs.replace(memory, peaks=peaks)
    most = peaks[0][1]
    if most >= number:
        return Decision(number, f"{reason}: {_replicas(number)} {_is_or_are(number)} needed.", memory)
    pause_s = STEP_S if memory.last == "down" else window_s
    left_s = max(pause_s - (now_s - memory.changed_at_s), 0.0)
    if snapshot.is_changing or left_s:
        then = "once the revision has changed" if snapshot.is_changing else f"in {left_s:.0f} s, unless more come"
        return Decision(number, f"{reason}: {_replicas(most)} would do, and one goes {then}.", memory)
    new_memory = msgspec.structs.replace(memory, changed_at_s=now_s, last="down")
    if number == 1:
        return Decision(0, f"No request came for {window_s:.0f} s.", new_memory)
    return Decision(number - 1, f"{_replicas(most)} would have done for {window_s:.0f} s: one goes.", new_memory)


def _need(load: Load, memory: Memory, share: float) -> int:
    """Return the number of replicas for which the load is at most this share of the capacity of each."""
    demand = _demand(load)
    by_places = math.ceil(demand / (memory.places_each * share) - _ROUNDING) if memory.places_each else 0
    by_kv = math.ceil(load.num_ready * load.kv_share / share - _ROUNDING)
    return max(by_places, by_kv, 1 if demand or load.idle_s < RECENT_S else 0)


def _demand(load: Load) -> int:
    return load.num_running + load.num_own + load.num_waiting + load.num_held


def _refreshed(memory: Memory | None, snapshot: PoolSnapshot, now_s: float) -> Memory:
    """Return the memory with the facts of this snapshot: the places of a replica, and the time that a start took."""
    if memory is None:
        memory = Memory(now_s)
    if memory.peaks and now_s - memory.peaks[-1][0] > GAP_S:
        memory = msgspec.structs.replace(memory, changed_at_s=now_s, last="", peaks=())
    if snapshot.load is not None and snapshot.load.num_ready and snapshot.load.places:
        memory = msgspec.structs.replace(memory, places_each=snapshot.load.places / snapshot.load.num_ready)
    if memory.woken_at_s is not None and snapshot.num_ready:
        memory = msgspec.structs.replace(memory, woken_at_s=None, start_s=now_s - memory.woken_at_s)
    return memory


def _with_peak(peaks: tuple[tuple[float, int], ...], need: int, now_s: float) -> tuple[tuple[float, int], ...]:
    """Return the recorded needs with the present one added; earlier needs that are not higher are dropped."""
    if peaks and peaks[-1][1] == need and now_s - peaks[-1][0] < PEAK_S:
        return peaks
    return (*(each for each in peaks if each[1] > need), (now_s, need))


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number != 1)}"


def _requests(number: int) -> str:
    return f"{number} request{'s' * (number != 1)}"


def _is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _s(number: int) -> str:
    return "s" * (number == 1)
