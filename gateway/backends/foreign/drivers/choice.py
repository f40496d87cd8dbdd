"""Chooses between a server's own driver and a generic one, which servers of untested versions get.

Asks the server for its version. Knows neither the server's condition nor its adapters.
"""

from __future__ import annotations

import time

import structlog

from gateway.backends.base import Unanswered
from gateway.backends.foreign.driver import Driver, ReplicaName
from gateway.backends.foreign.failures import NOT_READY, not_ready
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import version_of
from gateway.backends.generation import Generation

VERSION_EVERY_S = 60.0
"""Seconds between two questions for the version of a server that goes on answering: it may have been replaced."""

log = structlog.get_logger(__name__)


class DriverChoice:
    """The driver of one server, by the version that the server reports.

    A server that reports no version counts as a tried one.
    """

    def __init__(self, own: Driver, name: ReplicaName) -> None:
        self.driver = own
        """The driver of the server's version."""
        self.version = ""
        """The version that the server says it has; "" where it says none."""
        self.note = ""
        """A sentence for operators about a version that was not tried; "" for one that was."""
        self._own = own
        self._name = name
        self._takes_ids = "token_ids" in own.features()
        self._due_s = 0.0

    async def check_version(self, server: Server, *, is_new: bool) -> None:
        """Ask the server for its version if that is due.

        is_new: True if the server did not answer until now, so that its version is asked for at once; False: the
        version is asked for every VERSION_EVERY_S seconds.
        """
        tested = self._own.tested
        if tested is None or not (is_new or time.monotonic() >= self._due_s):
            return
        found = await version_of(server, tested)
        if found is None and not is_new:
            return  # it stays what it was, and is asked again with its condition
        self.version = found or ""
        self._due_s = time.monotonic() + VERSION_EVERY_S
        note = tested.untested_reason(self.version)
        self.driver = (self._own.generic or self._own) if note else self._own
        note += self._untried_use() if note else ""
        if note and note != self.note:
            log.warning("server_version", **self._name.fields, why=note)
        self.note = note

    @property
    def may_share_cache(self) -> bool:
        """True unless the server is known to keep the prompt caches of tenants apart."""
        return not self.driver.separates_caches or not self.version

    def driver_for(self, generation: Generation) -> Driver:
        """Return the driver by which the server is asked for a generation.

        If one server of a pool is of an untried version, the pool's generations are text, and all servers are asked in
        the generic way.
        """
        if generation.num_prompt_tokens is None or not self._takes_ids:
            return self.driver
        return self._own.generic or self._own

    def check(self, generation: Generation, driver: Driver) -> None:
        """Check that the server's driver can ask for a generation.

        When the generation was prepared, the servers of the pool may have had other versions.

        Raises Unanswered: when the driver cannot.
        """
        is_of_ids = generation.num_prompt_tokens is None and self._takes_ids
        is_without = generation.request.adapter and (driver.adapters is None or not self.has_adapters)
        if driver is not self.driver_for(generation) or (driver is not self._own and (is_of_ids or is_without)):
            raise Unanswered(not_ready(NOT_READY), "absent")

    @property
    def has_adapters(self) -> bool:
        """Tell whether adapters may answer at a server of this version."""
        if self.driver is self._own:
            return self._own.adapters is not None
        return self._proves_adapters(self.driver)

    @staticmethod
    def _proves_adapters(generic: Driver) -> bool:
        """Tell whether adapters may answer at a server of an untried version, each after a probe has shown it."""
        return generic.adapters is not None and generic.adapters.has_to_differ

    def _untried_use(self) -> str:
        """Return the end of the note about an untried version: the protocol by which the server is asked."""
        own, generic = self._own, self._own.generic
        if generic is None:
            return "; it is used all the same"
        protocol = "its own" if type(generic) is type(own) else "OpenAI's"
        if own.adapters is None:
            return f"; it is asked by {protocol} protocol alone"
        shown = "and with each adapter once a probe has shown it"
        adapters = shown if self._proves_adapters(generic) else "without adapters"
        return f"; it is asked by {protocol} protocol alone, {adapters}"
