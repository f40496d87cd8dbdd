"""Between HTTP and the pipeline: the context of a request, and the headers of a reply about its run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from engine.protocol import Usage
from gateway.content.transcript import LoggedMessage
from gateway.domain.experiments.exposure import HEADER, Exposure
from gateway.domain.tenancy.principal import Principal
from gateway.http.request.call import Call
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.context import RequestContext
from gateway.pipeline.run import Run

ADAPTER_HEADER = "x-lorikeet-adapter"
"""The header with `<name>@<version>` of the adapter that a reply comes from; absent for the base model."""


POOL_HEADER = "x-lorikeet-pool"
"""The header with the name of the pool that a reply comes from, where the operator allows that."""
COST_HEADER = "x-lorikeet-cost-nanos"
"""The header with the cost of a whole reply in nanos of the currency, where the operator allows that."""


def context_of(
    call: Call,
    caller: Principal,
    model: str | None,
    endpoint: str,
    *,
    stream: bool | None = False,
    logged_messages: Iterable[LoggedMessage] | None = None,
    experiment_fields: ExperimentFields | None = None,
) -> RequestContext:
    """Return the context of an HTTP request, and note its model for the request's log line.

    experiment_fields: the fields of the request that experiments read; None where no experiment can include the
    request. model: the model string; None where the request names none. stream: whether the reply is streamed.
    logged_messages: the messages of the request for the request log; None: nothing is logged.
    """
    call.model = model or ""
    of_experiments: dict[str, Any] = {}
    if experiment_fields is not None:
        of_experiments = {
            "unit": experiment_fields.unit,
            "forced_arm": experiment_fields.forced_arm,
            "is_off": experiment_fields.is_off,
            "exposed": partial(_note_exposure, call),
        }
    return RequestContext(
        principal=caller,
        request_id=call.request_id,
        model=model,
        endpoint=endpoint,
        stream=bool(stream),
        gone=lambda: call.client_gone and not call.outlives_client,
        trace=call.trace,
        logged_messages=logged_messages,
        batch=call.batch,
        **of_experiments,
    )


def _note_exposure(call: Call, exposure: Exposure) -> None:
    """Make the reply and the log line name the arm of an experiment, even if the reply is an error."""
    call.headers = (*call.headers, (HEADER, exposure.header))
    call.fields = exposure.log_fields(call.tenant)


def attach_run(call: Call, run: Run) -> None:
    """Add the headers of a run to its reply, and close the run when the reply is over, however it ended."""
    call.headers, call.on_end, call.num_admitted = (*call.headers, *run.headers), run.close, len(run.prompts)
    if run.log_fields:
        call.fields = {**call.fields, **run.log_fields}
    if run.adapter_label is not None:
        call.headers = (*call.headers, (ADAPTER_HEADER, run.adapter_label))
    if run.details is not None:
        call.headers = (*call.headers, (POOL_HEADER, run.details.pool))


def show_cost(call: Call, run: Run, usages: Sequence[Usage]) -> None:
    """Make a whole reply show its cost, if the operator allows that and the cost is known before the ledger has it."""
    nanos = None if run.details is None else run.details.cost_nanos(usages)
    if nanos is not None:
        call.headers = (*call.headers, (COST_HEADER, str(nanos)))
