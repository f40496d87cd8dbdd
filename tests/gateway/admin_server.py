"""A real HTTP server with the admin API over a real database, a real adapter store and no engine."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, cast

import httpx
import msgspec
import numpy as np
import uvicorn
from prometheus_client import CollectorRegistry
from safetensors.numpy import save_file

from adapters.inspection import BaseShape, Bounds, inspect
from adapters.store import AdapterStore
from engine.config import ModelConfig, RopeParameters
from engine.protocol import AdapterProbe
from gateway.adapters.intake import Inspect
from gateway.adapters.residency import Wanted
from gateway.adapters.service import Lifecycle
from gateway.admin import AdminServices, admin_routers
from gateway.admin.reports import Reports
from gateway.backends.base import Health
from gateway.backends.snapshot import EngineSnapshot
from gateway.batches.service import Batches
from gateway.billing.price_cache import PriceCache
from gateway.content.backend_keys import BackendKeys
from gateway.content.conversations import Conversations
from gateway.content.provider_keys import ProviderKeys
from gateway.content.request_log import RequestContents
from gateway.content.stored_responses import StoredResponses
from gateway.content.writes import Writes
from gateway.db.adapters.bases import register_base
from gateway.db.billing.prices import PriceLoader
from gateway.db.pool import Database
from gateway.domain.adapters.sources import AllowedSources
from gateway.domain.content.keys import ContentKey
from gateway.domain.errors import GatewayError
from gateway.domain.tenancy.addresses import Network
from gateway.domain.tenancy.principal import Role, Scope
from gateway.domain.tenancy.relying_party import RelyingParty
from gateway.experiments.keys import ProjectKeys
from gateway.files.content import FileContent
from gateway.files.pieces import FolderPieces
from gateway.files.service import Files
from gateway.http.envelope import Application
from gateway.http.errors import exception_handlers
from gateway.http.protocol.cap import ConnectionCap
from gateway.http.protocol.connection import Connection
from gateway.metering.journal import JournalState
from gateway.metering.reconcile import Reconciler
from gateway.observability.metrics import Metrics
from gateway.routing.planner import Planner
from gateway.routing.resolve import Resolver
from gateway.support.challenges import Challenges
from gateway.support.cipher import Cipher
from gateway.support.disk import DiskReserve
from gateway.support.pace import Pace
from gateway.support.secrets import Secrets
from gateway.tenancy.authenticate import Authenticator
from gateway.tenancy.failures import FailureCap
from gateway.tenancy.logins import Logins
from gateway.tenancy.passkeys import Passkeys
from tests.gateway.bases import BASE_DIGEST, bases
from tests.installation.passwords import quick_passwords
from tests.installation.tenants import store_operator_key
from tests.patience import PATIENCE_S

CIPHER = Cipher([ContentKey(b"k" * 32)])
SECRETS = Secrets(CIPHER)
PARTY = RelyingParty("llm.example.com", "https://llm.example.com")
MAX_ADAPTER_BYTES = 64 * 1024
MAX_ADAPTER_RANK = 16
MAX_BODY_BYTES = 4096
PASSWORD = "correct horse battery staple"
TINY_MODEL = ModelConfig(
    family="llama",
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-6,
    rope=RopeParameters(theta=10000.0),
    max_position=64,
    tie_word_embeddings=True,
)


def write_adapter(
    folder: Path,
    *,
    rank: int = 2,
    seed: int = 0,
    in_features: int = 8,
    out_features: int = 8,
    num_layers: int = TINY_MODEL.num_layers,
) -> Path:
    """Write an adapter on the query projections of `TINY_MODEL`, or of a model of another shape; return the folder.

    rank: the rank of the adapter. in_features, out_features, num_layers: the shape of the base model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(num_layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = random.standard_normal((rank, in_features), dtype=np.float32)
        tensors[f"{prefix}.lora_B.weight"] = random.standard_normal((out_features, rank), dtype=np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(config))
    return folder


class GoodEngines:
    """Fake engines that find every adapter good while they are ready.

    answers: the outcomes of the next probes, in order: an error to raise, or None for a good adapter; all later probes
    find a good adapter. dies: True if a probe that raises makes the engines not ready. resident_keys: the keys of
    adapters that the engines hold. probed, unloaded: the keys of adapters that were probed or unloaded, in order.
    refused_keys: the keys of adapters that the engines do not load.
    """

    def __init__(self) -> None:
        self.is_ready = True
        self.dies = False
        self.answers: list[GatewayError | None] = []
        self.resident_keys: set[str] = set()
        self.probed: list[str] = []
        self.unloaded: list[str] = []
        self.refused_keys: set[str] = set()

    def ready_bases(self) -> list[str]:
        return [BASE_DIGEST] if self.is_ready else []

    async def probe(self, base: str | None, key: str) -> AdapterProbe:
        self.probed.append(key)
        if self.answers and (error := self.answers.pop(0)) is not None:
            self.is_ready = not self.dies
            raise error
        self.resident_keys.add(key)
        return AdapterProbe(load_seconds=0.0, num_bytes=1, num_tokens=1, max_difference=1.0)

    def resident(self) -> frozenset[str]:
        return frozenset(self.resident_keys)

    async def unload(self, key: str) -> None:
        self.resident_keys.discard(key)
        self.unloaded.append(key)

    async def load(self, wanted: Collection[Wanted]) -> frozenset[Wanted]:
        """Load the adapters that are for their base, as `Residency.load` does, unless `refused_keys` has them."""
        bases = self.ready_bases()
        missing = frozenset(each for each in wanted if each[0] not in bases or each[1] in self.refused_keys)
        self.resident_keys |= {key for base, key in wanted if (base, key) not in missing}
        return missing


class Routes:
    """The admin API's application, reused for each test server, since registering its routes is slower than a test.

    The routes use the services of the server for which `serve` was called last.
    """

    def __init__(self, services: AdminServices) -> None:
        self._services = services
        # This object stands for the services: it passes on every attribute of the running server's.
        self._app = Application(
            metrics=Metrics(CollectorRegistry()),
            route_handlers=[*admin_routers(cast("AdminServices", self))],
            exception_handlers=exception_handlers(),
            openapi_config=None,
            logging_config=None,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)

    def serve(self, services: AdminServices, metrics: Metrics, trusted_proxies: Sequence[Network]) -> Application:
        self._services, self._app.metrics, self._app.trusted_proxies = services, metrics, trusted_proxies
        return self._app


_IDLE: list[Routes] = []


class AdminServer:
    """A running server without background work: tests call the collector and the prober themselves."""

    def __init__(
        self, url: str, app: Application, services: AdminServices, operator_key: str, engines: GoodEngines, folder: Path
    ) -> None:
        self.store_dir = folder / "adapters"
        self.engines = engines
        self.url = url
        self.app = app
        self.services = services
        self.operator_key = operator_key

    async def admin_key(self, *scopes: Scope, organization: str = "default") -> str:
        """Store an operator's key with these scopes and return it."""
        return await _store_admin_key(self.services.database, organization, scopes)

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """Return a client of the admin API that sends this key as its bearer.

        key: None: no key is sent.
        """
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # An upload is inspected by a process of its own, and many of them one after another.
        return httpx.AsyncClient(base_url=f"{self.url}/v1/organization", headers=headers, timeout=PATIENCE_S)

    async def user(self, email: str, role: Role | None, key: str | None = None) -> dict[str, Any]:
        """Make a user with `PASSWORD`, by the operator's key or another one; return the user.

        role: the role in the organization; None: none.
        """
        async with self.client(key or self.operator_key) as client:
            reply = await client.post("/users", json={"email": email, "role": role, "password": PASSWORD})
        assert reply.status_code == 200, reply.text
        user: dict[str, Any] = reply.json()
        return user

    @asynccontextmanager
    async def person(self, email: str) -> AsyncIterator[httpx.AsyncClient]:
        """Give a browser's client in which this user is logged in, and which sends the CSRF token."""
        async with self.client() as client:
            reply = await client.post(f"{self.url}/admin/v1/login", json={"email": email, "password": PASSWORD})
            assert reply.status_code == 200, reply.text
            client.headers["x-csrf-token"] = reply.json()["csrf_token"]
            yield client


@asynccontextmanager
async def serve_admin(
    database: Database,
    folder: Path,
    *,
    max_failed_keys: int = 0,
    trusted_proxies: Sequence[Network] = (),
    store: AdapterStore | None = None,
    engines: GoodEngines | None = None,
    inspect: Inspect = inspect,
    snapshots: Sequence[EngineSnapshot] = (),
    journal: JournalState = JournalState(True, 0, 1),  # noqa: B008 - it is frozen
    pace: Pace | None = None,
    disk: DiskReserve | None = None,
    require_totp: Literal["nobody", "owners", "everybody"] = "nobody",
    party: RelyingParty = PARTY,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[AdminServer]:
    """Serve on a free port of the loopback until the context is left.

    pace: the pace allowed to each caller; None: a pace that no test reaches.
    disk: the disk space that imports must leave free; None: none.
    party: the WebAuthn relying party, which is the server as browsers see it.
    clock: Unix seconds, by which challenges for passkeys grow old.
    max_failed_keys: the bad keys after which an address has to wait; 0: no bound. store: the adapter store; None: an
    empty one. engines: the engines that probe adapters; None: ones that accept all. snapshots: the engines as the API
    shows them. require_totp: the people who need an authenticator.
    """
    passwords = quick_passwords()
    failures = FailureCap(max_failed_keys)
    kept = store or AdapterStore(folder / "adapters")
    engines = engines or GoodEngines()
    served = bases(shape=BaseShape(TINY_MODEL.adapter_targets(), TINY_MODEL.num_layers))
    async with database.acquire() as conn:
        await register_base(conn, BASE_DIGEST, "tiny")
    lifecycle = Lifecycle(
        database,
        kept,
        engines,
        bases=served,
        bounds=Bounds(MAX_ADAPTER_RANK, MAX_ADAPTER_BYTES),
        upload_dir=folder / "uploads",
        inspection_lock=folder / "inspection.lock",
        inspect=inspect,
        grace_s=0.0,
    )
    metrics = Metrics(CollectorRegistry())
    keys = ProjectKeys(database, CIPHER)
    resolver = Resolver(database, served, keys.key)
    logins = Logins(database, passwords, failures, SECRETS.open, require_totp=require_totp, rp_id=party.id)
    services = AdminServices(
        database=database,
        reports=Reports(database, share=1e6, burst_s=1e6),
        store=kept,
        adapter_place="/srv/adapters",
        lifecycle=lifecycle,
        sources=AllowedSources.parse("https://models.example.com/"),
        authenticator=Authenticator(database, failures),
        logins=logins,
        passkeys=Passkeys(party, Challenges(CIPHER), database, logins, clock=clock),
        passwords=passwords,
        bases=served,
        version="0.0.0",
        max_adapter_bytes=MAX_ADAPTER_BYTES,
        disk=disk or DiskReserve(folder, 0),
        max_body_bytes=MAX_BODY_BYTES,
        private_webhooks=False,
        health=lambda: Health(ready=False, detail="no engine"),
        engines=lambda: list(snapshots),
        replica_healths=dict,
        journal=lambda: journal,
        reconcile=Reconciler(database, {}, metrics.journal).reconcile,
        contents=RequestContents(database, CIPHER, Writes(metrics.content_lost)),
        responses=StoredResponses(database, CIPHER, Writes(metrics.content_lost)),
        conversations=Conversations(database, CIPHER, Writes(metrics.content_lost)),
        files=Files(database, FileContent(database, FolderPieces(folder / "files"), CIPHER), CIPHER),
        batches=Batches(database, CIPHER),
        max_file_bytes=MAX_ADAPTER_BYTES,
        load_adapters=engines.load,
        secrets=SECRETS,
        pace=pace or Pace(1e6, 1e6, what="the admin API"),
        unit_keys=keys,
        planner=Planner(resolver, PriceCache(PriceLoader(database)), lambda name: True),
        backend_keys=BackendKeys(database, CIPHER),
        provider_keys=ProviderKeys(database, CIPHER),
    )
    key = await _store_admin_key(database, "default", ("admin_read", "admin_write"))
    routes = _IDLE.pop() if _IDLE else Routes(services)
    app = routes.serve(services, metrics, trusted_proxies)
    # asyncio turns off Nagle's algorithm only where the protocol is named; replies would wait 40 ms for a late ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # a client that connects before the server runs waits for it
    config = uvicorn.Config(
        app,
        http=functools.partial(Connection, ConnectionCap(0), {}),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    services.authenticator.changes.subscribe(services.watchers.changed)
    services.authenticator.changes.subscribe(resolver.changed)
    await services.authenticator.start()
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield AdminServer(f"http://127.0.0.1:{listener.getsockname()[1]}", app, services, key, engines, folder)
    finally:
        services.watchers.close()
        server.should_exit = True
        await serving
        listener.close()
        await services.logins.stop()
        await services.authenticator.stop()
        _IDLE.append(routes)


async def _store_admin_key(database: Database, organization_name: str, scopes: tuple[Scope, ...]) -> str:
    async with database.acquire() as conn:
        return await store_operator_key(conn, organization_name, scopes)
