"""The services with which the admin API works; the application's builder puts them together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from adapters.store import AdapterStore
from gateway.adapters.residency import Wanted
from gateway.adapters.service import Lifecycle
from gateway.admin.billing.downloads import Downloads
from gateway.admin.reports import Reports
from gateway.admin.traffic.watchers import Watchers
from gateway.backends.base import Health
from gateway.backends.snapshot import EngineSnapshot
from gateway.batches.service import Batches
from gateway.content.backend_keys import BackendKeys
from gateway.content.conversations import Conversations
from gateway.content.provider_keys import ProviderKeys
from gateway.content.request_log import RequestContents
from gateway.content.stored_responses import StoredResponses
from gateway.db.pool import Database
from gateway.domain.adapters.sources import AllowedSources
from gateway.domain.routing.bases import Bases
from gateway.domain.tenancy.actor import Actor
from gateway.experiments.keys import ProjectKeys
from gateway.files.service import Files
from gateway.metering.journal import JournalState
from gateway.metering.reconcile import Reconciliation
from gateway.routing.planner import Planner
from gateway.support.disk import DiskReserve
from gateway.support.pace import Pace
from gateway.support.project_threads import ProjectThreads
from gateway.support.secrets import Secrets
from gateway.tenancy.authenticate import Authenticator
from gateway.tenancy.logins import Logins
from gateway.tenancy.passkeys import Passkeys
from gateway.tenancy.passwords import Passwords

REQUESTS_PER_S, REQUESTS_BURST = 50.0, 3000.0
"""The requests per second, and at once, of one key or person to the admin API of one gateway process."""


class AdminServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that the routes of the admin API use."""

    database: Database
    store: AdapterStore
    adapter_place: str
    """The folder or the URL of the adapter store."""
    authenticator: Authenticator
    logins: Logins
    passkeys: Passkeys
    passwords: Passwords
    lifecycle: Lifecycle
    sources: AllowedSources
    """The sources that adapters may be fetched from."""
    bases: Bases
    """The base models that this gateway serves."""
    version: str
    """The version of Lorikeet."""
    max_adapter_bytes: int
    """The largest content of an adapter, in bytes."""
    disk: DiskReserve
    """The free room on the disk that uploads go to."""
    max_body_bytes: int
    """The largest body of a request, in bytes."""
    private_webhooks: bool
    """True if webhooks may be at private addresses."""
    health: Callable[[], Health]
    """The function that returns the health of this gateway's engines."""
    engines: Callable[[], list[EngineSnapshot]]
    """The function that returns the present state of each engine."""
    replica_healths: Callable[[], Mapping[str, Health]]
    """The function that returns the health of each replica that this gateway is connected to, by the replica's id."""
    journal: Callable[[], JournalState]
    """The function that returns the state of this gateway's journal."""
    reconcile: Callable[[], Awaitable[Reconciliation]]
    """The function that compares the engines' counts with the ledger."""
    contents: RequestContents
    responses: StoredResponses
    conversations: Conversations
    files: Files
    batches: Batches
    max_file_bytes: int
    """The largest file that comes in one request."""
    load_adapters: Callable[[Collection[Wanted]], Awaitable[frozenset[Wanted]]]
    """The function that loads adapters on engines of their bases, and returns those that could not be loaded."""
    secrets: Secrets
    backend_keys: BackendKeys
    """The keys that servers of other makers ask for."""
    provider_keys: ProviderKeys
    """The keys that projects bring for servers of other makers."""
    unit_keys: ProjectKeys
    """The secrets under which units of experiments are digested."""
    planner: Planner
    """The planner of routes for requests."""
    pace: Pace = msgspec.field(
        default_factory=lambda: Pace(REQUESTS_PER_S, REQUESTS_BURST, what="the admin API", whose="This key or user")
    )
    """The rate of requests of each key and person."""
    reports: Reports
    pattern_threads: ProjectThreads = msgspec.field(
        default_factory=lambda: ProjectThreads("patterns", "routes with patterns", 1)
    )
    """The threads that compile the regular expressions of routes."""
    downloads: Downloads = msgspec.field(default_factory=Downloads)
    """The exports that this gateway makes now."""
    watchers: Watchers = msgspec.field(default_factory=Watchers)
    """The live streams that this gateway serves."""


Services = NamedDependency[SkipValidation[AdminServices]]
Caller = NamedDependency[SkipValidation[Actor]]
