"""The start of a new installation: the operator's key, a person who can sign in and, for the demo model, its tenants.

The demo has prices and two tenants with their adapters, one of them with an experiment that is ready to be started.
Runs at every start and changes nothing the second time. The database has only hashes of keys, so a key comes from its
file: it is made valid in the database, unless the database knows it already, revoked or not. Adapters and the
experiment are made only together with their tenant: one that the operator removed does not come back, nor does a
tenant. Prices are set where there are no tenants yet: present tenants keep their prices. The first person is made where
the organization never had anybody: a removed one does not come back either.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adapters.demo import DEMO
from adapters.peft_format import read_adapter
from adapters.stores import open_store
from gateway.db.adapters.adapter_versions import put_adapter
from gateway.db.adapters.bases import settle_base
from gateway.db.adapters.contents import store_shared
from gateway.db.billing.prices import add_version, list_versions
from gateway.db.migrate import migrate
from gateway.db.organization.audit import Author, record
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.passkeys import list_locked_out
from gateway.db.organization.projects import create_project, find_project, list_projects, was_archived
from gateway.db.organization.users import create_user, had_users
from gateway.db.pool import Database
from gateway.domain.billing.book import ANY, Entry
from gateway.domain.billing.money import DEFAULT_CURRENCY
from gateway.domain.tenancy.keys import KeyKind, new_key, parse_key
from gateway.domain.tenancy.principal import Scope
from gateway.domain.tenancy.relying_party import relying_party
from gateway.serve import demo_experiment
from gateway.settings import Settings
from gateway.support.accounts import as_root
from gateway.support.process import write_private
from gateway.tenancy.locked_out import locked_out_notice
from gateway.tenancy.passwords import Passwords

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ORGANIZATION = "default"
ADMIN_EMAIL = "admin@localhost"
OPERATOR_SCOPES: tuple[Scope, ...] = ("admin_read", "admin_write")
TENANT_SCOPES: tuple[Scope, ...] = ("inference",)
TENANT_KEY_NAMES = {"acme": "OPENAI_API_KEY", "globex": "GLOBEX_API_KEY"}
"""For each demo tenant, the variable in `demo.env` that holds its key."""

DEMO_PRICES = Entry(ANY, ANY, ANY, input_nanos=200_000_000, cached_input_nanos=50_000_000, output_nanos=800_000_000)
"""The prices of the demo, which let it show a tenant's costs: usage from before any prices would stay free."""


class BadOperatorKey(ValueError):
    """The error for a LORIKEET_ADMIN_KEY that does not have the form of an operator's key."""


class Access(msgspec.Struct, frozen=True):
    """The keys and the first password of this installation."""

    operator_key: str
    tenant_keys: dict[str, str]
    """The keys of the demo's tenants by name; empty without the demo."""
    new_password: str | None = None
    """The password of the person whom this start made; None at every later start."""
    has_demo_prices: bool = False
    """True if nobody has set other prices."""
    notice: str = ""
    """A sentence about people who are locked out; "" for none."""


async def bootstrap(dsn: str, settings: Settings, base_digest: str, runtime: str | None = None) -> Access:
    """Bring the schema up to date and ensure that the base model, the keys and the demo exist.

    dsn: the connection string of the role that owns the tables.
    runtime: the name of the role of gateways, where they have their own; None: they connect as the owner.
    base_digest: the digest of the base model of the settings.

    Raises MigrationRefused: when the schema cannot be brought up to date.
    Raises BadOperatorKey: when the setting holds no key that can be an operator's.
    Raises AdapterRejected: when an adapter of the demo is refused.
    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    await migrate(dsn, runtime=runtime)
    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as connection:
        organization = await ensure_organization(connection, ORGANIZATION)
        await settle_base(connection, base_digest, settings.model_name)
        operator_key = await _operator_key(connection, organization.id, settings)
        new_password = await _first_person(connection, organization.id, settings)
        tenant_keys: dict[str, str] = {}
        if settings.model == "demo":
            tenant_keys = await _demo(connection, organization.id, operator_key, settings, base_digest)
        return Access(
            operator_key,
            tenant_keys,
            new_password,
            await _has_demo_prices(connection, organization.id),
            await _notice(connection, settings),
        )


async def _notice(connection: Connection, settings: Settings) -> str:
    """Return a sentence about people whom the settings lock out; "" for none."""
    if settings.require_totp == "nobody":
        return ""
    party = relying_party(settings.public_url, settings.port)
    rp_id = "" if party is None else party.id
    people = await list_locked_out(connection, None, rp_id, owners_only=settings.require_totp == "owners")
    return locked_out_notice(people, rp_id) if people else ""


async def make_operator(dsn: str, settings: Settings) -> None:
    """Make the operator's key and the first person, each if a setting names its secret. A second call changes nothing.

    An installation needs both if no `serve` starts its processes.

    Raises BadOperatorKey: when the setting holds no key that can be an operator's.
    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as connection:
        organization = await ensure_organization(connection, ORGANIZATION)
        if settings.admin_key:
            await _operator_key(connection, organization.id, settings)
        if settings.admin_password:
            await _first_person(connection, organization.id, settings)


async def _operator_key(connection: Connection, organization_id: str, settings: Settings) -> str:
    if settings.admin_key:
        if not _is_key(settings.admin_key, "admin"):
            raise BadOperatorKey("LORIKEET_ADMIN_KEY is not an operator's key (sk-lk-admin-...)")
        key = settings.admin_key
    else:
        path = settings.operator_key_path
        with as_root():  # gateways, which do not run as root, have no business with the operator's secrets
            key = path.read_text().strip() if path.exists() else ""
            if not _is_key(key, "admin"):
                key = new_key("admin").secret
                write_private(path, f"{key}\n")
    await _store_key(connection, key, organization_id, None, "operator", OPERATOR_SCOPES)
    return key


async def _first_person(connection: Connection, organization_id: str, settings: Settings) -> str | None:
    """Make the first owner and return the password; None where the organization has, or had, people."""
    if await had_users(connection, organization_id):
        return None
    path = settings.admin_login_path
    password = settings.admin_password or read_env_file(path).get("password") or secrets.token_urlsafe(16)
    if not settings.admin_password:
        # Written before the database knows its hash, as keys are.
        with as_root():
            write_private(path, f"email={ADMIN_EMAIL}\npassword={password}\n")
    password_hash = await Passwords().hash(password)
    async with connection.transaction():
        user = await create_user(
            connection,
            organization_id,
            email=ADMIN_EMAIL,
            name="Administrator",
            role="owner",
            password_hash=password_hash,
        )
        if user is None:
            return None  # of another organization
        shown = {"id": user.id, "email": user.email, "role": user.role}
        await record(connection, _author(organization_id), "user.added", user.id, after=shown)
    return password


async def _demo(
    connection: Connection, organization_id: str, operator_key: str, settings: Settings, base_digest: str
) -> dict[str, str]:
    values = read_env_file(settings.demo_env_path)
    keys: dict[str, str] = {}
    for tenant, variable in TENANT_KEY_NAMES.items():
        key = values.get(variable, "")
        keys[tenant] = key if _is_key(key, "project") else new_key().secret
    # Written before the database knows the keys: a secret that only the database had seen would be lost.
    with as_root():
        write_private(settings.demo_env_path, demo_env(settings, Access(operator_key, keys)))
    await _demo_prices(connection, organization_id)
    for tenant, key in keys.items():
        if await was_archived(connection, organization_id, tenant):
            continue
        project_id = await _tenant(connection, organization_id, tenant, settings, base_digest)
        await _store_key(connection, key, organization_id, project_id, "demo", TENANT_SCOPES)
    return keys


async def _demo_prices(connection: Connection, organization_id: str) -> None:
    """Set prices for an organization that has neither prices nor anybody who would have to pay them."""
    has_projects = await list_projects(connection, organization_id, archived=True, limit=1)
    if has_projects or await list_versions(connection, organization_id, limit=1):
        return
    async with connection.transaction():
        stored = await add_version(
            connection,
            organization_id,
            currency=DEFAULT_CURRENCY,
            entries=[DEMO_PRICES],
            discounts={},
            effective_at=None,
        )
        price = {
            "model": ANY,
            "adapter_class": ANY,
            "service_tier": ANY,
            "input_nanos_per_million": DEMO_PRICES.input_nanos,
            "cached_input_nanos_per_million": DEMO_PRICES.cached_input_nanos,
            "output_nanos_per_million": DEMO_PRICES.output_nanos,
        }
        after = {"id": stored.id, "version": stored.version.version, "currency": DEFAULT_CURRENCY, "entries": [price]}
        await record(connection, _author(organization_id), "prices.set", stored.id, after=after)


async def _has_demo_prices(connection: Connection, organization_id: str) -> bool:
    newest = await list_versions(connection, organization_id, limit=1)
    return bool(newest) and newest[0].version.entries == (DEMO_PRICES,)


async def _tenant(
    connection: Connection, organization_id: str, tenant: str, settings: Settings, base_digest: str
) -> str:
    """Make a demo tenant's project with its adapters, together or not at all, and return the project's id."""
    if found := await find_project(connection, organization_id, tenant):
        return found.id
    store = open_store(settings.engine.adapter_store, settings.adapter_cache_dir, settings.engine.adapter_cache_bytes)
    made: list[tuple[str, str, dict[str, Any]]] = []
    async with store_shared(connection):
        project = await create_project(connection, organization_id, tenant)
        assert project is not None, "nobody else serves this data folder"
        made.append(("project.created", project.id, {"id": project.id, "name": project.name}))
        for adapter in (adapter for adapter in DEMO if adapter.tenant == tenant):
            file = await asyncio.to_thread(read_adapter, adapter.path)
            digest = await asyncio.to_thread(store.add, adapter.path)
            row, _ = await put_adapter(
                connection,
                project.id,
                adapter.name,
                base_digest=base_digest,
                digest=digest,
                rank=file.rank_max,
                size_bytes=store.size_bytes(digest),
            )
            shown = {"id": row.id, "name": row.name, "version": row.version, "digest": row.digest}
            made.append(("adapter.created", row.id, shown))
        for event, object_id, after in made:
            await record(connection, _author(organization_id), event, object_id, project_id=project.id, after=after)
        if tenant == demo_experiment.TENANT:
            await demo_experiment.make_demo_experiment(
                connection, _author(organization_id), project.id, settings.model_name
            )
    return project.id


async def _store_key(
    connection: Connection, key: str, organization_id: str, project_id: str | None, name: str, scopes: tuple[Scope, ...]
) -> None:
    parsed = parse_key(key)
    assert parsed is not None
    async with connection.transaction():
        row = await create_key(
            connection,
            organization_id=organization_id,
            project_id=project_id,
            name=name,
            public=parsed.public,
            sha256=parsed.sha256,
            scopes=scopes,
        )
        if row is not None:
            event = "api_key.created" if project_id else "admin_api_key.created"
            shown = {"id": row.id, "name": row.name, "redacted_value": f"{row.public}***", "scopes": row.scopes}
            await record(connection, _author(organization_id), event, row.id, project_id=project_id, after=shown)


def _author(organization_id: str) -> Author:
    return Author(organization_id=organization_id, kind="system", id="bootstrap", email=None, address="", request_id="")


def _is_key(text: str, kind: KeyKind) -> bool:
    parsed = parse_key(text)
    return parsed is not None and parsed.kind == kind


def demo_env(settings: Settings, access: Access) -> str:
    """Return the text of `demo.env`.

    The official OpenAI client and the command line read its values from the environment.
    """
    values = {"OPENAI_BASE_URL": f"{settings.base_url}/v1"}
    values |= {TENANT_KEY_NAMES[tenant]: key for tenant, key in access.tenant_keys.items()}
    values["LORIKEET_ADMIN_KEY"] = access.operator_key
    return "".join(f"{name}={value}\n" for name, value in values.items())


def read_env_file(path: Path) -> dict[str, str]:
    """Return the NAME=VALUE lines of a file as a dict, which is empty if there is no such file."""
    with as_root():
        text = path.read_text() if path.exists() else ""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
