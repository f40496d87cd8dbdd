"""What the admin API works with; the application's builder puts it together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from adapters.store import AdapterStore
from engine.config import ModelConfig
from gateway.admin.downloads import Downloads
from gateway.backends.base import Health
from gateway.db.pool import Database
from gateway.metering.reconcile import Reconciliation
from gateway.tenancy.actor import Actor
from gateway.tenancy.authenticate import Authenticator
from gateway.tenancy.logins import Logins
from gateway.tenancy.passwords import Passwords

MAX_FILE_WORK = 2


class AdminServices(msgspec.Struct, frozen=True, kw_only=True):
    """model_name: public id of the base model. upload_dir: where an upload waits to be checked; made on demand.

    downloads: what exports this gateway makes at the moment.
    on_adapter_removed: gets the digest of content that no tenant uses any more, before it leaves the store, so that
    backends can unload it; it must not raise. file_slots: how many uploads are checked, copied and hashed at once.
    """

    database: Database
    store: AdapterStore
    authenticator: Authenticator
    logins: Logins
    passwords: Passwords
    model_config: ModelConfig
    model_name: str
    version: str
    upload_dir: Path
    max_adapter_bytes: int
    max_adapter_rank: int
    max_body_bytes: int
    private_webhooks: bool
    health: Callable[[], Health]
    reconcile: Callable[[], Awaitable[Reconciliation]]
    on_adapter_removed: Callable[[str], Awaitable[None]]
    file_slots: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(MAX_FILE_WORK))
    downloads: Downloads = msgspec.field(default_factory=Downloads)


Services = NamedDependency[SkipValidation[AdminServices]]
Caller = NamedDependency[SkipValidation[Actor]]
