"""Admits the prompts of one HTTP request: its reply tells which adapter it is from and where the caller's limits stand,
its end frees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request

from gateway.domain.tenancy.principal import Principal
from gateway.http.envelope import call_of
from gateway.pipeline.pipeline import Pipeline, Prepared

ADAPTER_HEADER = "x-lorikeet-adapter"
"""`<name>@<version>` of the adapter that a reply comes from; none where that is the base."""


async def admit(
    pipeline: Pipeline, request: Request[Any, Any, Any], caller: Principal, prepared: Sequence[Prepared]
) -> Sequence[Prepared]:
    """What may run, in order; all of it goes one way. Raises LimitReached and Overloaded."""
    admitted = await pipeline.admit(caller, prepared)
    call, adapter = call_of(request.scope), prepared[0].route.adapter
    call.headers, call.on_end, call.num_admitted = admitted.headers, admitted.close, len(prepared)
    if adapter is not None:
        call.headers = (*call.headers, (ADAPTER_HEADER, adapter.label))
    return admitted.prepared
