"""Pauses a running experiment whose guardrail has found harm: state, audit, webhooks and a look, in one transaction.

Gateways are informed by the change feed, as of any change of an experiment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.looks import keep_look
from gateway.db.experiments.scopes import Scope, find_scopes, notify_webhooks, pause_experiment
from gateway.db.organization import audit
from gateway.domain.experiments.definition import Experiment, Metrics
from gateway.domain.experiments.effects import Mean
from gateway.domain.experiments.guardrails import GuardrailVerdict, has_to_pause
from gateway.domain.experiments.results import Results, results_of
from gateway.experiments.results import load_tally, new_look

if TYPE_CHECKING:
    from gateway.db.pool import Connection

EVENT = "experiment.paused"
"""The name of the audit row, and of the message to webhooks."""


class PauseReason(msgspec.Struct, frozen=True):
    """The reason why an experiment paused itself."""

    metric: str
    """The name of the guardrail's metric."""
    arm: str
    """The name of the arm that did harm."""
    at: int
    """The time in Unix seconds."""
    text: str
    """The finding in words, for people."""


async def pause_if_harmed(conn: Connection, experiment_id: str) -> PauseReason | None:
    """Pause an experiment if one of its guardrails has found harm; return the reason, or None.

    The changes are part of the caller's transaction. Harm that a guardrail found before a person started the experiment
    again does not pause the experiment a second time.
    """
    scope = (await find_scopes(conn, [experiment_id])).get(experiment_id)
    if scope is None or scope.state != "running":
        return None
    guarded = _guarded(scope.definition)
    if not guarded.metrics.guardrails:
        return None
    results = results_of(guarded, await load_tally(conn, scope, guarded, by_day=False), scope.own)
    names = [arm.name for arm in scope.definition.arms]
    harms = [each for each in results.guardrails if (each.metric, names[each.arm]) not in scope.overruled]
    found = has_to_pause(guarded.metrics.guardrails, harms)
    if not found:
        return None
    why = _pause_reason(scope.definition, found[0], results)
    if not await pause_experiment(conn, scope.id, why):
        return None
    look = await new_look(conn, scope)
    await keep_look(conn, scope.id, look.version, look.days, look.results, always=True)
    data = {
        "experiment_id": scope.id,
        "project_id": scope.project_id,
        "name": scope.definition.name,
        "metric": why.metric,
        "arm": why.arm,
        "text": why.text,
    }
    await notify_webhooks(conn, scope.organization_id, EVENT, data)
    await _audit(conn, scope, why)
    return why


async def _audit(conn: Connection, scope: Scope, why: PauseReason) -> None:
    author = audit.Author(
        organization_id=scope.organization_id, kind="system", id="guardrail", email=None, address="", request_id=""
    )
    await audit.record(
        conn,
        author,
        EVENT,
        scope.id,
        project_id=scope.project_id,
        before={"state": scope.state},
        after={"state": "paused", "why": why},
    )


def _guarded(definition: Experiment) -> Experiment:
    """Return the definition with only those guardrails that may pause the experiment."""
    pausing = tuple(each for each in definition.metrics.guardrails if each.action == "pause")
    return msgspec.structs.replace(definition, metrics=Metrics((), pausing, ()))


def _pause_reason(definition: Experiment, found: GuardrailVerdict, results: Results) -> PauseReason:
    arm, control = definition.arms[found.arm].name, definition.arms[0].name
    text = f"`{found.metric}` is worse in the arm `{arm}` than in `{control}`"
    compared = next(
        (each for each in results.comparisons if (each.metric, each.arm) == (found.metric, found.arm)), None
    )
    if compared is not None:
        text += f": a mean of {_mean_text(compared.treatment)}, against {_mean_text(compared.control)}"
    return PauseReason(found.metric, arm, int(time.time()), f"{text}.")


def _mean_text(mean: Mean) -> str:
    return f"{mean.mean:.4g} over {mean.n:,} units"
