"""The life of an experiment: draft -> running <-> paused -> stopped -> decided -> archived."""

from __future__ import annotations

from typing import Literal

from gateway.domain.errors import Conflict

State = Literal["draft", "running", "paused", "stopped", "decided", "archived"]
"""The states of an experiment.

draft: nothing is served, everything may change.
running: units are assigned.
paused: all units get the control; exposed units get their arm again later.
stopped: all units get the control for good; outcomes still come within their window.
decided: the model string is an alias of the chosen arm's target.
archived: the experiment is only kept."""
Verb = Literal["start", "pause", "stop", "decide", "archive", "change", "delete"]

NEXT: dict[tuple[State, Verb], State] = {
    ("draft", "start"): "running",
    ("paused", "start"): "running",
    ("running", "pause"): "paused",
    ("running", "stop"): "stopped",
    ("paused", "stop"): "stopped",
    ("stopped", "decide"): "decided",
    ("decided", "archive"): "archived",
}
_CHANGEABLE: frozenset[State] = frozenset(("draft", "running", "paused"))


def state_after(state: State, verb: Verb) -> State:
    """Return the state after an action; a change, and the deletion of a draft, leave it the same.

    Raises Conflict: when the verb is not for this state.
    """
    if (verb == "change" and state in _CHANGEABLE) or (verb == "delete" and state == "draft"):
        return state
    following = NEXT.get((state, verb))
    if following is None:
        hint = f" Possible now: {', '.join(allowed)}." if (allowed := possible_actions(state)) else ""
        raise Conflict(f"`{verb}` is not possible: the experiment is {state}.{hint}", param="state")
    return following


def possible_actions(state: State) -> list[Verb]:
    """Return the actions that a state of an experiment allows, in the order of an experiment's life."""
    verbs: list[Verb] = [verb for origin, verb in NEXT if origin == state]
    if state in _CHANGEABLE:
        verbs.append("change")
    return [*verbs, "delete"] if state == "draft" else verbs


def owns_slots(state: State) -> bool:
    """Tell whether an experiment keeps its slots of the layer: from its start until it is decided."""
    return state in ("running", "paused", "stopped")


def has_started(state: State) -> bool:
    """Tell whether an experiment has started, so that only the changes of `definition.check_change` are allowed."""
    return state != "draft"
