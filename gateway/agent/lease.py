"""The lease of a host: the right of one agent to change its replicas.

The database's clock decides when it runs out. An agent is present as long as it holds `agent.lock` in the data folder:
where nobody does, the agent before is dead, and its lease need not run out first.
"""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import math
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from gateway.agent.hardware import Hardware
from gateway.db.pool import FAILURES, Database
from gateway.db.pools.hosts import claim_host, is_removed, release_host, renew_host, runs_elsewhere
from gateway.domain.pools.capacity import Placement
from gateway.support.host import host_id

LEASE_S = 5.0
"""Seconds for which a lease holds once it is renewed."""
RENEW_S = 1.0
"""Seconds between two renewals."""
CLAIM_PAUSE_S = 0.5
"""Seconds between two attempts to take a host's lease."""
ATTEMPTS_UNTIL_LOGGED = 4
"""Attempts at taking a host before the log says that another agent has it: an agent that ends needs a moment."""

LOCK_NAME = "agent.lock"

log = structlog.get_logger(__name__)


class Superseded(Exception):
    """The error of an agent whose host another agent has: the agent must not touch anything any more."""


class Removed(Superseded):
    """The error of an agent whose host an operator has removed."""


class OtherPlacement(Superseded):
    """The error of an agent with another LORIKEET_PLACEMENT than the one that started the host's replicas."""


class Lease:
    """The right to change the replicas of a host, until another agent takes it."""

    def __init__(
        self,
        database: Database,
        data_dir: Path,
        hardware: Hardware,
        programs: Iterable[str] = (),
        *,
        placement: Placement = "local",
    ) -> None:
        """Prepare the lease of this host; `claim` takes it.

        programs: the drivers whose servers the host can start. placement: the way in which replicas find a machine.
        """
        self.host_id = host_id(data_dir)
        self.host_name = hardware.name
        self.generation = 0
        self._confirmed_s = -math.inf
        self._database = database
        self._hardware = hardware
        self._programs = list(programs)
        self._placement: Placement = placement
        self._presence = os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def held_s(self) -> float:
        """Seconds for which no other agent can take the host while this process lives; 0 or less: another one can."""
        return self._confirmed_s + LEASE_S - asyncio.get_running_loop().time()

    async def claim(self) -> None:
        """Wait until the host has no other agent, and take the host.

        An agent is present as long as it holds its lock file: where no agent does, the lease need not run out first.
        """
        num_attempts = 0
        while True:
            num_attempts += 1
            begun_s = asyncio.get_running_loop().time()
            try:
                async with self._database.acquire() as conn:
                    generation = await claim_host(
                        conn,
                        self.host_id,
                        self._hardware.name,
                        lease=datetime.timedelta(seconds=LEASE_S),
                        num_processors=self._hardware.num_processors,
                        memory_bytes=self._hardware.memory_bytes,
                        gpu_bytes=self._hardware.gpu_bytes,
                        force=self._is_present(),
                        programs=self._programs,
                        placement=self._placement,
                    )
            except FAILURES as error:
                log.warning("host_not_claimed", error=str(error) or type(error).__name__)
                generation = None
            else:
                if generation is None:
                    await self._check_removed()
                    await self._check_placement()
            if generation is not None:
                self.generation, self._confirmed_s = generation, begun_s
                log.info("host_claimed", host=self.host_id, generation=generation)
                return
            if num_attempts == ATTEMPTS_UNTIL_LOGGED:
                log.warning(
                    "host_taken", host=self.host_id, error="another agent runs on this host: waiting for its end"
                )
            await asyncio.sleep(CLAIM_PAUSE_S)

    async def keep(self) -> None:
        """Renew the lease every few seconds, until it is lost.

        Raises Superseded: when another agent has the host.
        """
        while True:
            try:
                await self.confirm()
            except FAILURES as error:
                log.warning("lease_not_renewed", error=str(error) or type(error).__name__)
            self._is_present()
            await asyncio.sleep(RENEW_S)

    async def confirm(self) -> None:
        """Renew the lease.

        Raises Superseded: when another agent has the host.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        begun_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(LEASE_S), self._database.acquire() as conn:
            renewed = await renew_host(conn, self.host_id, self.generation, datetime.timedelta(seconds=LEASE_S))
        if not renewed:
            self._confirmed_s = -math.inf
            await self._check_removed()
            raise Superseded(f"another agent has host {self.host_id}")
        if asyncio.get_running_loop().time() - begun_s > LEASE_S:
            raise TimeoutError("the lease ran out while it was renewed")
        self._confirmed_s = begun_s

    async def _check_removed(self) -> None:
        """Check that no operator has removed the host.

        Raises Removed: when one has.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            if await is_removed(conn, self.host_id):
                raise Removed("this host was removed (`lorikeet host remove`): join again in another data folder")

    async def _check_placement(self) -> None:
        """Check that the host has no replicas that another placement runs.

        Raises OtherPlacement: when it has.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            if await runs_elsewhere(conn, self.host_id, self._placement):
                raise OtherPlacement(
                    f"this host has replicas that were started with another LORIKEET_PLACEMENT than {self._placement}: "
                    "start it as before until they are stopped, or use another data folder"
                )

    async def release(self, *, leaves_engines: bool) -> None:
        """Give the host's lease back, so that the next agent has it at once. leaves_engines: some engines serve on."""
        try:
            async with asyncio.timeout(LEASE_S), self._database.acquire() as conn:
                await release_host(conn, self.host_id, self.generation, leaves_engines=leaves_engines)
        except FAILURES as error:
            log.warning("lease_not_released", error=str(error) or type(error).__name__)

    def close(self) -> None:
        """Unlock the lock file: this agent no longer counts as present."""
        os.close(self._presence)

    def _is_present(self) -> bool:
        """Lock the lock file unless another agent of the data folder holds it; return whether this one does."""
        try:
            fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
