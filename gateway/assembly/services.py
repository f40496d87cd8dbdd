"""All parts of a gateway process, put together from its settings and started and stopped in order."""

from __future__ import annotations

import asyncio
import datetime
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Protocol, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from adapters.inspection import Bounds
from adapters.stores import open_store
from engine.config import model_digest
from engine.version import VERSION
from gateway.adapters.download import Downloader
from gateway.adapters.fetch import Fetcher, Hub
from gateway.adapters.importer import Importer
from gateway.adapters.residency import Residency
from gateway.adapters.service import Lifecycle, PoolEngines
from gateway.adapters.watcher import Watcher
from gateway.admin.reports import MAX_AT_ONCE, Reports
from gateway.admin.services import AdminServices
from gateway.backends.base import Health
from gateway.backends.engine.client import EngineBackend
from gateway.backends.engine.link import engine_context
from gateway.batches.dispatcher import Dispatcher
from gateway.batches.feed import Feed
from gateway.batches.service import Batches
from gateway.batches.services import BatchServices
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.price_cache import PriceCache
from gateway.content.backend_keys import BackendKeys
from gateway.content.background_responses import BackgroundResponses
from gateway.content.content_quota import ContentQuota
from gateway.content.conversations import Conversations
from gateway.content.idempotency import Idempotency
from gateway.content.keeper import Keeper
from gateway.content.keys import content_keys
from gateway.content.provider_keys import ProviderKeys
from gateway.content.purge import Purger
from gateway.content.request_log import MAX_WAITING_BYTES, RequestContents
from gateway.content.stored_chats import StoredChats
from gateway.content.stored_responses import StoredResponses
from gateway.content.writes import Writes
from gateway.db.billing.prices import PriceLoader
from gateway.db.changes import Change
from gateway.db.due_work import DueWork
from gateway.db.limits.leases import PostgresLeases
from gateway.db.limits.limits import LimitLoader
from gateway.db.organization.organizations import installation_id
from gateway.db.pool import UNAVAILABLE, UNUSABLE, Database, lock_table_warning
from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.pools.provider_key import KeyUse
from gateway.domain.routing.bases import Bases
from gateway.domain.tenancy.relying_party import relying_party
from gateway.domain.tracing import names
from gateway.domain.tracing.sampler import Sampler
from gateway.domain.tracing.span import Attributes
from gateway.evaluation.flags import Flags
from gateway.evaluation.votes import Votes
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.experiments.keys import ProjectKeys
from gateway.experiments.notes import Notes
from gateway.experiments.turns import StandIn
from gateway.exports.deliverer import Deliverer, places_below
from gateway.files.content import FileContent
from gateway.files.service import Files
from gateway.files.stores import open_pieces
from gateway.files.sweeper import Sweeper
from gateway.files.uploads import Uploads
from gateway.http.bodies import Bodies
from gateway.limits.limiter import Limiter
from gateway.limits.rules import Rules
from gateway.messages.thinking import Signatures
from gateway.metering.reconcile import Reconciler
from gateway.metering.service import Metering
from gateway.observability.metrics import SHARED_METRICS_DIR, Metrics
from gateway.observability.refusals import Refusals
from gateway.observability.tracing.exporter import Exporter
from gateway.observability.tracing.trace import BeginTrace, Tracer, context_without_spans
from gateway.openai.batches.lines import Lines
from gateway.openai.responses.background.runner import BackgroundRunner
from gateway.openai.responses.background.running import RunTools
from gateway.openai.responses.sealed_items import SealedItems
from gateway.openai.responses.state import EarlierItems
from gateway.pipeline.pipeline import Pipeline
from gateway.pools.first_pool import ensure_first_pool
from gateway.pools.foreign import ForeignServers
from gateway.pools.live import LivePools
from gateway.pools.loads import PoolLoads
from gateway.pools.readiness import GatewayReadiness
from gateway.pools.this_machine import ThisMachine
from gateway.routing.planner import Planner
from gateway.routing.resolve import Resolver
from gateway.settings import Settings
from gateway.support.challenges import Challenges
from gateway.support.cipher import Cipher
from gateway.support.disk import DiskReserve
from gateway.support.outbound import Guard, trusted_authorities
from gateway.support.paced_calls import PacedCalls
from gateway.support.secrets import Secrets
from gateway.tenancy.authenticate import Authenticator
from gateway.tenancy.failures import FailureCap
from gateway.tenancy.locked_out import locked_out_notice
from gateway.tenancy.logins import Logins
from gateway.tenancy.passkeys import Passkeys
from gateway.tenancy.passwords import Passwords
from gateway.webhooks.sender import WebhookSender

log = structlog.get_logger(__name__)

CONNECTIONS = 8
ADMIN_CONNECTIONS = 3
"""Connections to the database for the admin API, beside those for requests and the work around them.

Neither has to wait for a report, which has connections of its own.
"""

BATCH_CONNECTIONS = 3
"""The most of a gateway's connections that batches use at once, so that requests need not wait for any."""

ONE_PROCESS = {"max_parallel_workers_per_gather": "0"}
"""PostgreSQL's settings that keep a report to one processor of the database."""

REPORT_NICENESS = 10
"""The niceness of PostgreSQL's processes that read reports, if they run on this machine: requests have the processors
first, and a report still ends within seconds on a busy machine. A report locks nothing for long, since it changes
nothing."""

T = TypeVar("T")

DATABASE_RETRY_S = 0.5
ABORTED_FINALS_S = 5.0


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The services that the application's handlers use."""

    settings: Settings
    database: Database
    authenticator: Authenticator
    resolver: Resolver
    pools: LivePools
    readiness: GatewayReadiness
    version: str
    """The product's version; "unknown" where it runs from a source tree that is not installed."""

    pipeline: Pipeline
    metrics: Metrics
    admin: AdminServices
    idempotency: Idempotency
    chats: StoredChats
    responses: StoredResponses
    background: BackgroundResponses
    runner: BackgroundRunner
    conversations: Conversations
    files: Files
    uploads: Uploads
    batches: Batches
    contents: RequestContents
    refusals: Refusals
    votes: Votes
    flags: Flags
    signatures: Signatures
    sealed_items: SealedItems
    begin_trace: BeginTrace
    """The function that begins the trace of a request."""


@asynccontextmanager
async def running_services(
    settings: Settings, *, model_dir: Path | None, dsn: str, passwords: Passwords | None = None
) -> AsyncIterator[Services]:
    """Start the services and yield them; on leaving, stop requests first, then the ledger, then the database.

    model_dir: the folder of the settings' base model, which becomes the first pool of an installation that never had
    one, with the engine at the settings' endpoint as its replica; None for an installation that has had one. passwords:
    the hasher of people's passwords; None: one with the usual parameters.

    Waits for the database; engines may come later, and go and come again.

    Raises one of `gateway.db.pool.UNUSABLE`: when the connection string or the schema is wrong.
    Raises JournalUnusable: when no folder can be had for the journal.
    Raises StoreFailure: when the adapter store cannot be opened.
    Raises BadContentKey: when a content key is wrong.
    """
    cipher = Cipher(content_keys(settings.content_key, settings.content_key_path))
    secrets = Secrets(cipher)
    shared = os.environ.get(SHARED_METRICS_DIR)
    metrics = Metrics(CollectorRegistry(), Path(shared) if shared else None)
    async with AsyncExitStack() as stack:
        begin_trace = _tracing(stack, settings, metrics)
        database = await stack.enter_async_context(await connect_database(dsn))
        of_admin = await stack.enter_async_context(await connect_database(dsn, ADMIN_CONNECTIONS, ONE_PROCESS))
        of_reports = await stack.enter_async_context(
            await connect_database(dsn, MAX_AT_ONCE, ONE_PROCESS, niceness=REPORT_NICENESS)
        )
        await once_available(lambda: _warn_about_locks(database))
        if model_dir is not None:
            await once_available(partial(_ensure_first_pool, database, settings, model_dir))
        bases = Bases()
        failures = FailureCap(settings.max_failed_keys)
        authenticator = Authenticator(database, failures)
        project_keys = ProjectKeys(database, cipher)
        resolver = Resolver(database, bases, project_keys.key)
        authenticator.changes.subscribe(resolver.changed)
        prices = PriceCache(PriceLoader(database))
        authenticator.changes.subscribe(prices.changed)
        await once_available(prices.start)
        stack.push_async_callback(prices.stop)
        limiter = _limiter(database, authenticator, prices)
        database_id = await once_available(lambda: _database_id(database))
        metering = Metering(
            settings.journal_dir,
            database,
            limiter,
            metrics,
            database_id=database_id,
            max_journal_bytes=settings.journal_bytes,
            spent_journal_bytes=settings.journal_spent_bytes,
            version=VERSION,
        )
        backend_keys = BackendKeys(database, cipher)
        authenticator.changes.subscribe(backend_keys.changed)
        provider_keys = ProviderKeys(database, cipher)
        authenticator.changes.subscribe(provider_keys.changed)
        context, this_machine = engine_context(), ThisMachine(settings)
        stack.push_async_callback(asyncio.to_thread, context.term)  # waits for goodbyes to leave
        due, batch_turns = authenticator.changes.due_work, PacedCalls()
        pools = LivePools(
            database,
            bases,
            lambda address, model, key: EngineBackend(
                address,
                database_id=database_id,
                model=model,
                sink=metering.meter,
                context=context,
                peer=this_machine.peer(key),
                batch_turns=batch_turns,
            ),
            forget_routes=lambda: resolver.changed(None),
            connect_foreign=ForeignServers(
                metering.meter,
                backend_keys.key,
                lambda allow_private: Guard.of(allow_private=allow_private).address_of,
                trusted_authorities,
                provider_keys.find,
                lambda digest: lifecycle.store.reading(digest),
            ).connect,
            this_machine=this_machine,
            cold_start_s=settings.cold_start_seconds,
        )
        authenticator.changes.subscribe(pools.changed)

        async def key_use(project_id: str, pool: str) -> KeyUse:
            return "pool" if pool not in pools else await provider_keys.use(project_id, pools[pool].serving)

        planner = Planner(resolver, prices, lambda name: name in pools and pools[name].ready, key_use=key_use)
        reconciler = Reconciler(database, pools, metrics.journal)
        lifecycle = _lifecycle(settings, database, bases, pools, due)
        content_writes = Writes(metrics.content_lost, max_bytes=MAX_WAITING_BYTES)
        disk = DiskReserve(settings.data_dir, settings.disk_reserve_bytes)
        room = ContentQuota(database, settings.max_content_bytes, disk)
        contents = RequestContents(database, cipher, content_writes, room)
        writes = Writes(metrics.content_lost)
        responses = StoredResponses(database, cipher, writes, room)
        conversations = Conversations(database, cipher, writes, room)
        pieces = open_pieces(settings.file_store)
        files = Files(database, FileContent(database, pieces, cipher, room), cipher)
        batches = Batches(database, cipher)
        residency = Residency(database, lambda: pools.by_base)
        authenticator.changes.subscribe(residency.changed)
        admin = _admin_services(
            settings,
            of_admin,
            of_reports,
            authenticator,
            failures,
            bases,
            pools,
            reconciler,
            lifecycle,
            metering,
            contents,
            residency,
            cipher,
            secrets,
            project_keys,
            planner,
            backend_keys,
            disk,
            provider_keys,
            passwords or Passwords(),
            responses,
            conversations,
            files,
            batches,
        )
        authenticator.changes.subscribe(admin.watchers.changed)
        stack.push_async_callback(admin.logins.stop)
        await once_available(lambda: _warn_about_locked_out(database, admin.logins))
        await _start(stack, authenticator, limiter, metering, pools, Purger(database))
        idempotency = Idempotency(database, cipher, writes, room=room)
        refusals = Refusals(database, metrics.refusals_lost)
        notes = Notes(database, metrics.experiment_notes_lost, is_awaited=due.wake("awaited_notes"))
        _start_workers(
            stack,
            writes,
            content_writes,
            idempotency,
            Keeper(database, cipher),
            Sweeper(database, pieces),
            lifecycle,
            *_import_workers(settings, database, lifecycle, due),
            residency,
            refusals,
            notes,
            WebhookSender(database, secrets, allow_private=settings.private_webhooks, wake=due.wake("deliveries")),
            Deliverer(database, places_below(settings.export_dir, allow_private=settings.private_webhooks), secrets),
            Bookkeeper(database, due.wake("books")),
            ExperimentBookkeeper(database, metrics.experiments, turn=StandIn(database), wake=due.wake("experiments")),
            reconciler,
        )
        metrics.watch(pools)
        pipeline = Pipeline(
            resolver,
            pools,
            metering.meter,
            limiter,
            contents,
            notes,
            planner,
            metrics.shadows,
            metrics.routes,
            provider_keys.use,
            default_max_tokens=settings.default_max_tokens,
            max_shadows=settings.max_shadows,
            rates_of=prices.exact_rates if settings.reply_details else None,
        )
        background = BackgroundResponses(database, cipher, responses, room)
        sealed_items = SealedItems(cipher)
        earlier = EarlierItems(responses, conversations, Bodies(), sealed_items)
        runner = BackgroundRunner(
            RunTools(pipeline, background, earlier, authenticator.principal, begin_trace),
            metrics.background_responses,
            drain_s=settings.drain_seconds,
            wake=due.wake("responses"),
        )
        authenticator.changes.subscribe(runner.changed)
        chats = StoredChats(database, cipher, writes, room)
        tools = BatchServices(
            database=database.bounded(BATCH_CONNECTIONS),
            files=files,
            output=FileContent(database, pieces, cipher),
            cipher=cipher,
            runner=Lines(pipeline, idempotency, chats, responses, earlier, background, begin_trace),
            feed=Feed(pools),
            max_line_bytes=settings.max_body_bytes,
            turns=batch_turns,
            metrics=metrics.batches,
        )
        loads = PoolLoads(database, pools, metering.meter.journal_id)
        _start_workers(
            stack, pipeline.shadows, loads, runner, Dispatcher(tools, metering.meter.journal_id, due.wake("batches"))
        )
        yield Services(
            settings=settings,
            database=database,
            authenticator=authenticator,
            resolver=resolver,
            pools=pools,
            readiness=GatewayReadiness(database, pools),
            version=VERSION,
            pipeline=pipeline,
            metrics=metrics,
            admin=admin,
            idempotency=idempotency,
            chats=chats,
            responses=responses,
            background=background,
            runner=runner,
            conversations=conversations,
            files=files,
            uploads=Uploads(database, files, cipher),
            batches=batches,
            contents=contents,
            refusals=refusals,
            votes=Votes(database, project_keys, cipher),
            flags=Flags(database, resolver),
            signatures=Signatures(cipher),
            sealed_items=sealed_items,
            begin_trace=begin_trace,
        )


def _tracing(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> BeginTrace:
    """Return the function that begins the traces of requests; the stack stops the exporter last."""
    if not settings.traces_url:
        return context_without_spans
    instance: Attributes = {names.SERVICE_VERSION: VERSION, names.SERVICE_INSTANCE_ID: f"{gethostname()}:{os.getpid()}"}
    exporter = Exporter(
        settings.traces_url,
        settings.collector_headers,
        {
            "gateway": {names.SERVICE_NAME: names.GATEWAY, **instance},
            "engine": {names.SERVICE_NAME: names.ENGINE},
        },
        metrics.spans,
        version=VERSION,
    )
    _start_workers(stack, exporter)
    return Tracer(Sampler(settings.traces_sampler, settings.traces_ratio), exporter).begin


def _limiter(database: Database, authenticator: Authenticator, prices: PriceCache) -> Limiter:
    rules = Rules(LimitLoader(database))
    limiter = Limiter(PostgresLeases(database), rules, DatabaseClock(time.monotonic), prices)

    def changed(change: Change | None) -> None:
        rules.changed(change)
        if change is None or change.table == "limits":
            limiter.limit_changed(change.id if change else None)

    authenticator.changes.subscribe(changed)
    return limiter


async def _start(
    stack: AsyncExitStack,
    authenticator: Authenticator,
    limiter: Limiter,
    metering: Metering,
    pools: LivePools,
    purger: Purger,
) -> None:
    """Start each service, and have the stack stop them in the opposite order.

    Streams end first; then the journal is on disk and engines are told, and last the journal's records go to the
    ledger.
    """
    await authenticator.start()
    stack.push_async_callback(authenticator.stop)
    await once_available(limiter.start)
    stack.push_async_callback(limiter.stop)
    metering.start()
    stack.push_async_callback(metering.stop)
    await once_available(pools.start)
    stack.push_async_callback(pools.disconnect)
    purger.start()
    stack.push_async_callback(purger.stop)
    stack.push_async_callback(metering.flush)
    stack.push_async_callback(_drain, pools)
    stack.push_async_callback(pools.stop)


class Worker(Protocol):
    """Works in the background from `start` to `stop`."""

    def start(self) -> None:
        """Begin to work."""

    async def stop(self) -> None:
        """End the work."""


def _start_workers(stack: AsyncExitStack, *workers: Worker) -> None:
    """Start each worker; the stack stops them in the opposite order."""
    for worker in workers:
        worker.start()
        stack.push_async_callback(worker.stop)


def _lifecycle(settings: Settings, database: Database, bases: Bases, pools: LivePools, due_work: DueWork) -> Lifecycle:
    return Lifecycle(
        database,
        open_store(settings.engine.adapter_store, settings.adapter_cache_dir, settings.engine.adapter_cache_bytes),
        PoolEngines(pools, bases),
        bases=bases,
        bounds=Bounds(settings.engine.max_adapter_rank, settings.max_adapter_bytes),
        upload_dir=settings.data_dir / "uploads",
        inspection_lock=settings.data_dir / "inspection.lock",
        grace_s=settings.adapter_grace_seconds,
        version_waits=due_work.wake("probes"),
    )


def _import_workers(settings: Settings, database: Database, lifecycle: Lifecycle, due_work: DueWork) -> list[Worker]:
    """Return the workers that import adapters without a request: downloads from sources, and the watched folder."""
    take_in, store, max_bytes = lifecycle.intake.take_in, lifecycle.store, settings.max_adapter_bytes
    downloader = Downloader(Guard.of(allow_private=settings.private_webhooks))
    fetcher = Fetcher(downloader, settings.allowed_sources, max_bytes=max_bytes, hub=Hub.of(os.environ))
    import_waits = due_work.wake("imports")
    workers: list[Worker] = [Importer(database, fetcher, partial(take_in, again="fetching"), store, wake=import_waits)]
    if settings.adapter_folder is not None:
        workers.append(Watcher(database, settings.adapter_folder, take_in, store, max_bytes=max_bytes))
    return workers


def _admin_services(
    settings: Settings,
    database: Database,
    of_reports: Database,
    authenticator: Authenticator,
    failures: FailureCap,
    bases: Bases,
    pools: LivePools,
    reconciler: Reconciler,
    lifecycle: Lifecycle,
    metering: Metering,
    contents: RequestContents,
    residency: Residency,
    cipher: Cipher,
    secrets: Secrets,
    unit_keys: ProjectKeys,
    planner: Planner,
    backend_keys: BackendKeys,
    disk: DiskReserve,
    provider_keys: ProviderKeys,
    passwords: Passwords,
    responses: StoredResponses,
    conversations: Conversations,
    files: Files,
    batches: Batches,
) -> AdminServices:
    party = relying_party(settings.public_url, settings.port)
    logins = Logins(
        database,
        passwords,
        failures,
        secrets.open,
        idle=datetime.timedelta(minutes=settings.login_idle_minutes) or None,
        require_totp=settings.require_totp,
        rp_id="" if party is None else party.id,
    )
    return AdminServices(
        database=database,
        reports=Reports(of_reports),
        logins=logins,
        passkeys=Passkeys(party, Challenges(cipher), database, logins),
        passwords=passwords,
        store=lifecycle.store,
        adapter_place=settings.engine.adapter_store,
        lifecycle=lifecycle,
        sources=settings.allowed_sources,
        authenticator=authenticator,
        bases=bases,
        version=VERSION,
        max_adapter_bytes=settings.max_adapter_bytes,
        max_body_bytes=settings.max_body_bytes,
        private_webhooks=settings.private_webhooks,
        health=lambda: _first_health(pools),
        engines=lambda: [backend.snapshot(name) for name, pool in pools.items() for backend in pool.backends],
        replica_healths=lambda: pools.healths,
        journal=lambda: metering.journal_state,
        reconcile=reconciler.reconcile,
        contents=contents,
        responses=responses,
        conversations=conversations,
        files=files,
        batches=batches,
        max_file_bytes=settings.max_file_bytes,
        load_adapters=residency.load,
        secrets=secrets,
        unit_keys=unit_keys,
        planner=planner,
        backend_keys=backend_keys,
        disk=disk,
        provider_keys=provider_keys,
    )


async def _ensure_first_pool(database: Database, settings: Settings, model_dir: Path) -> None:
    digest = await asyncio.to_thread(model_digest, model_dir)
    async with database.acquire() as conn:
        await ensure_first_pool(
            conn,
            settings.model_name,
            model=settings.model,
            folder=model_dir,
            base_digest=digest,
            address=settings.engine.endpoint,
        )


def _first_health(pools: LivePools) -> Health:
    """Return the health of a replica of the oldest pool."""
    backend = next((backend for pool in pools.values() for backend in pool.backends), None)
    return backend.health() if backend is not None else Health(ready=False, detail="no replica runs")


async def _database_id(database: Database) -> str:
    async with database.acquire() as conn:
        return await installation_id(conn)


async def connect_database(
    dsn: str,
    max_connections: int = CONNECTIONS,
    settings: Mapping[str, str] | None = None,
    *,
    niceness: int = 0,
) -> Database:
    """Connect to the database, once it is available.

    max_connections: the most open connections. settings: settings of PostgreSQL for each connection. niceness: the
    niceness of the server's processes behind the connections.

    Raises one of `gateway.db.pool.UNUSABLE`: when trying again would change nothing.
    """
    connect = partial(Database.connect, dsn, max_size=max_connections, settings=settings, niceness=niceness)
    return await once_available(connect)


async def once_available(work: Callable[[], Awaitable[T]]) -> T:
    """Do a part of the gateway's start that needs the database, again and again until the database is available.

    work: the part, which may be done several times.

    Raises one of `gateway.db.pool.UNUSABLE`: when trying again would change nothing.
    """
    while True:
        try:
            return await work()
        except UNUSABLE:
            raise
        except UNAVAILABLE as error:
            log.warning("database_unavailable", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(DATABASE_RETRY_S)


async def _warn_about_locks(database: Database) -> None:
    async with database.acquire() as conn:
        if (warning := await lock_table_warning(conn)) is not None:
            log.warning("database_has_few_locks", error=warning)


async def _warn_about_locked_out(database: Database, logins: Logins) -> None:
    async with database.acquire() as conn:
        if people := await logins.locked_out(conn):
            log.warning("people_locked_out", error=locked_out_notice(people, logins.rp_id))


async def _drain(pools: LivePools) -> None:
    """Wait for the usage of requests that were aborted just now, after all streams have ended."""
    backends = pools.connected
    try:
        async with asyncio.timeout(ABORTED_FINALS_S):
            await asyncio.gather(*(backend.drain() for backend in backends))
    except TimeoutError:
        log.warning("requests_still_running", num_in_flight=sum(backend.num_in_flight for backend in backends))
