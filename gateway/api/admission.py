"""Admits the prompts of one HTTP request: its reply tells where the caller's limits stand, and its end frees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request

from gateway.api.envelope import call_of
from gateway.pipeline import Pipeline, Prepared
from gateway.principal import Principal


async def admit(
    pipeline: Pipeline, request: Request[Any, Any, Any], caller: Principal, prepared: Sequence[Prepared]
) -> Sequence[Prepared]:
    """What may run, in order. Raises LimitReached and Overloaded."""
    admitted = await pipeline.admit(caller, prepared)
    call = call_of(request.scope)
    call.headers, call.on_end = admitted.headers, admitted.close
    return admitted.prepared
