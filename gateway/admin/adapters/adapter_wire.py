"""Adapters, their versions and their imports as the admin API shows them. Times are in Unix seconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.admin.common import unix_seconds
from gateway.db.adapters.adapter_imports import ImportRow, ImportState
from gateway.db.adapters.adapter_versions import VersionRow, VersionState
from gateway.db.adapters.adapters import AdapterRow
from gateway.domain.routing.bases import Bases


class Adapter(msgspec.Struct, frozen=True):
    """An adapter with the current version."""

    id: str
    name: str
    model: str
    """The model id under which the project's keys call the current version."""
    version: int | None
    """The number of the current version; null while no version was ever current."""
    digest: str | None
    """The SHA-256 of the current version's content; null while no version was ever current."""
    rank: int | None
    """The rank of the current version; null while no version was ever current."""
    size_bytes: int | None
    """The size of the current version; null while no version was ever current."""
    previous_version: int | None
    """The version to which a rollback goes."""
    pinned: bool
    """True if the current version stays loaded on engines."""
    defaults: dict[str, Any]
    """Values for requests that name none."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.adapter"] = "organization.project.adapter"


class TenantsAdapter(Adapter, frozen=True, kw_only=True):
    """An adapter in a list over several projects."""

    project_id: str
    project_name: str


class PutAdapter(Adapter, frozen=True, kw_only=True):
    """An adapter after an upload."""

    uploaded_version: int
    """The number of the version that has the uploaded content."""
    version_state: VersionState
    """The state of the uploaded version; `inspected` while no engine is there to try it."""
    changed: bool
    """True if the upload changed anything; false where the adapter had this content already."""


class AdapterVersion(msgspec.Struct, frozen=True):
    """A version of an adapter."""

    id: str
    """The model id of this version without its base."""
    adapter: str
    """The adapter's name."""
    version: int
    model: str
    """The model id with which a request calls this very version."""
    state: VersionState
    """The present stage of the version."""
    reason: str | None
    """The reason why the version was rejected."""
    current: bool
    """True if this is the adapter's current version."""
    promote: bool
    """True if the version was to become current once it is ready.

    A later order for another version may have replaced this one.
    """
    digest: str
    """The SHA-256 of the version's content."""
    rank: int
    size_bytes: int
    source: str
    """The source of the content, such as `upload` or `hf://my-org/my-adapter`."""
    created_at: int
    """Unix seconds."""
    changed_at: int
    """Unix seconds at which the version came to its state."""
    object: Literal["organization.project.adapter.version"] = "organization.project.adapter.version"


class AdapterVersionDetail(AdapterVersion, frozen=True, kw_only=True):
    """A version of an adapter, with the findings about its content."""

    report: dict[str, Any] | None
    """The findings of the inspection."""
    probe: dict[str, Any] | None
    """The findings of the engine that tried the version."""


class AdapterImport(msgspec.Struct, frozen=True):
    """The arrival of content for an adapter: an upload, or a download from a source."""

    id: str
    name: str
    """The adapter's name; empty until this part of an upload in one piece has arrived."""
    source: str
    """The source of the content, such as `upload` or `hf://my-org/my-adapter`."""
    state: ImportState
    """The present stage of the import, or the way in which the import ended."""
    reason: str | None
    """The reason why the import is `rejected` or `failed`."""
    size_bytes: int | None
    """Bytes of the content; null while the size is not known."""
    received_bytes: int
    """Bytes that have arrived. A resumable upload continues at this offset."""
    promote: bool
    """True if the version becomes current once it is ready."""
    version: int | None
    """The number of the version that the import made, once the state is `done`."""
    sha256: str | None
    """The SHA-256 of the archive that the upload announced."""
    base: str | None
    """The base model that the adapter is for; null where none was named, until the content is inspected."""
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""
    object: Literal["organization.project.adapter_import"] = "organization.project.adapter_import"


class DeletedAdapter(msgspec.Struct, frozen=True):
    """An adapter that was removed."""

    name: str
    aliases: list[str]
    """Aliases that pointed at the adapter and were removed with it."""
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.deleted"] = "organization.project.adapter.deleted"


class DeletedAdapterVersion(msgspec.Struct, frozen=True):
    """A version of an adapter that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.version.deleted"] = "organization.project.adapter.version.deleted"


def adapter_fields(row: AdapterRow, bases: Bases, organization_id: str) -> dict[str, Any]:
    """Return the fields of `Adapter`, whose model string begins with the name of the adapter's base."""
    return {
        "id": row.id,
        "name": row.name,
        "model": f"{bases.name_of(row.base_digest, row.project_id, organization_id)}:{row.name}",
        "version": row.version,
        "digest": row.digest,
        "rank": row.rank,
        "size_bytes": row.size_bytes,
        "previous_version": row.previous_version,
        "pinned": row.pinned,
        "defaults": row.defaults,
        "created_at": unix_seconds(row.created_at),
    }


def version_fields(row: VersionRow, bases: Bases, project_id: str, organization_id: str) -> dict[str, Any]:
    """Return the fields of `AdapterVersion`, whose model string begins with the name of the version's base."""
    base = bases.name_of(row.base_digest, project_id, organization_id)
    return {
        "id": f"{row.name}@{row.version}",
        "adapter": row.name,
        "version": row.version,
        "model": f"{base}:{row.name}@{row.version}",
        "state": row.state,
        "reason": row.reason,
        "current": row.current,
        "promote": row.promote,
        "digest": row.digest,
        "rank": row.rank,
        "size_bytes": row.size_bytes,
        "source": row.source,
        "created_at": unix_seconds(row.created_at),
        "changed_at": unix_seconds(row.changed_at),
    }


def import_wire(row: ImportRow, bases: Bases, organization_id: str) -> AdapterImport:
    """Return an import, with the name that the people of its project know its base by."""
    return AdapterImport(
        id=row.id,
        name=row.name,
        source=row.source,
        state=row.state,
        reason=row.reason,
        size_bytes=row.size_bytes,
        received_bytes=row.received_bytes,
        promote=row.promote,
        version=row.version,
        sha256=row.sha256,
        base=None if row.base_digest is None else bases.name_of(row.base_digest, row.project_id, organization_id),
        created_at=unix_seconds(row.created_at),
        updated_at=unix_seconds(row.updated_at),
    )
