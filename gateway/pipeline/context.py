"""The caller of one request, as far as the pipeline has to know the caller: HTTP, a line of a batch, a test.

Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from gateway.content.transcript import LoggedMessage
from gateway.domain.batches.line import BatchLine
from gateway.domain.errors import ClientGone, DeadlinePassed
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.tenancy.principal import Principal
from gateway.observability.tracing.trace import UNTRACED, Traced


def _never() -> bool:
    return False


def _no_unit(source: str) -> str | None:
    return None


def _ignore_exposure(exposure: Exposure) -> None:
    pass


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a principal, from any source."""

    principal: Principal
    """The caller, who is charged for the request and whose limits apply."""
    request_id: str
    """The id of the request's first row in the ledger; the rows of further prompts have ids made of it."""
    model: str | None
    """The model string as the caller wrote it; None where the operation may do without one."""
    endpoint: str
    """The operation, as the ledger and the request log name it."""
    account: str | None = None
    """The account under which engines and tokenizing share their time fairly; None: that of the caller's project."""
    stream: bool = False
    """True where the caller reads the reply as it is generated."""
    deadline: float | None = None
    """The event loop's time, in seconds, at which all work for the request ends; None: there is no deadline."""
    gone: Callable[[], bool] = _never
    """The function that tells whether nobody waits for the reply any more."""
    trace: Traced = UNTRACED
    """The trace that the request belongs to."""
    logged_messages: Iterable[LoggedMessage] | None = None
    """The request's messages for the request log, read once and only if the project logs content. None: its prompts."""
    unit: Callable[[str], str | None] = _no_unit
    """The function that returns the unit that the request names in a source (`definition.UnitSource.source`)."""
    forced_arm: str | None = None
    """The name of the arm of an experiment that the caller asks for. The request is not analysed then."""
    is_off: bool = False
    """True where the caller asks for no part in an experiment."""
    exposed: Callable[[Exposure], None] = _ignore_exposure
    """The function that is called with the request's arm of an experiment, before anything can refuse the request."""

    batch: BatchLine | None = None
    """The batch line that the request answers; None for a request of its own."""

    @property
    def fair_account(self) -> str:
        """The account under which engines and tokenizing share their time fairly."""
        return self.account or self.principal.project_id

    def check(self) -> None:
        """Check that somebody still waits for the request.

        Raises ClientGone: when the client has disconnected.
        Raises DeadlinePassed: when the request's deadline has passed.
        """
        if self.gone():
            raise ClientGone("The client disconnected.")
        if self.deadline is not None and asyncio.get_running_loop().time() > self.deadline:
            raise DeadlinePassed("The request did not end before its deadline.")
