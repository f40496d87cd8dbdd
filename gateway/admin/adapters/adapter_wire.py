"""Adapters, their versions and their imports as the admin API shows them. Times are in Unix seconds."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.admin.common import seconds
from gateway.db.adapters.adapter_imports import ImportRow, ImportState
from gateway.db.adapters.adapter_versions import VersionRow, VersionState
from gateway.db.adapters.adapters import AdapterRow
from gateway.domain.routing.bases import Bases


class Adapter(msgspec.Struct, frozen=True):
    """model: the id under which the project's keys reach its current version. version, digest, rank and size_bytes are
    that version's, null while none was ever current; previous_version is what a rollback goes to."""

    id: str
    name: str
    model: str
    version: int | None
    digest: str | None
    rank: int | None
    size_bytes: int | None
    previous_version: int | None
    pinned: bool
    defaults: dict[str, Any]
    created_at: int
    object: Literal["organization.project.adapter"] = "organization.project.adapter"


class TenantsAdapter(Adapter, frozen=True, kw_only=True):
    """As a list over several projects has it."""

    project_id: str
    project_name: str


class PutAdapter(Adapter, frozen=True, kw_only=True):
    """uploaded_version: the number of the version that has the content that came. version_state: its state; "inspected"
    while no engine is there to try it. changed: false if nothing did, since the content was there already.
    """

    uploaded_version: int
    version_state: VersionState
    changed: bool


class AdapterVersion(msgspec.Struct, frozen=True):
    """id, model: as a request names this very version, less the base in the id. promote: whether it was ever to become
    the current version once it is ready; a later wish for another version may have overtaken that. reason: why it was
    rejected. changed_at: when it came to its state."""

    id: str
    adapter: str
    version: int
    model: str
    state: VersionState
    reason: str | None
    current: bool
    promote: bool
    digest: str
    rank: int
    size_bytes: int
    source: str
    created_at: int
    changed_at: int
    object: Literal["organization.project.adapter.version"] = "organization.project.adapter.version"


class AdapterVersionDetail(AdapterVersion, frozen=True, kw_only=True):
    """report: what the inspection found. probe: what an engine found."""

    report: dict[str, Any] | None
    probe: dict[str, Any] | None


class AdapterImport(msgspec.Struct, frozen=True):
    """How content comes in. name: empty until that part of an upload in one piece has come. version: what it became,
    once state is "done". reason: why it is "rejected" or "failed". received_bytes: where a resumable upload goes on.
    sha256: of the archive, as announced."""

    id: str
    name: str
    source: str
    state: ImportState
    reason: str | None
    size_bytes: int | None
    received_bytes: int
    promote: bool
    version: int | None
    sha256: str | None
    created_at: int
    updated_at: int
    object: Literal["organization.project.adapter_import"] = "organization.project.adapter_import"


class DeletedAdapter(msgspec.Struct, frozen=True):
    """aliases: those that pointed at it, which went with it."""

    name: str
    aliases: list[str]
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.deleted"] = "organization.project.adapter.deleted"


class DeletedAdapterVersion(msgspec.Struct, frozen=True):
    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.adapter.version.deleted"] = "organization.project.adapter.version.deleted"


def adapter_fields(row: AdapterRow, bases: Bases) -> dict[str, Any]:
    """Return the fields of `Adapter`, whose model string begins with the name of the adapter's base."""
    return {
        "id": row.id,
        "name": row.name,
        "model": f"{bases.name_of(row.base_digest)}:{row.name}",
        "version": row.version,
        "digest": row.digest,
        "rank": row.rank,
        "size_bytes": row.size_bytes,
        "previous_version": row.previous_version,
        "pinned": row.pinned,
        "defaults": row.defaults,
        "created_at": seconds(row.created_at),
    }


def version_fields(row: VersionRow, bases: Bases) -> dict[str, Any]:
    return {
        "id": f"{row.name}@{row.version}",
        "adapter": row.name,
        "version": row.version,
        "model": f"{bases.name_of(row.base_digest)}:{row.name}@{row.version}",
        "state": row.state,
        "reason": row.reason,
        "current": row.current,
        "promote": row.promote,
        "digest": row.digest,
        "rank": row.rank,
        "size_bytes": row.size_bytes,
        "source": row.source,
        "created_at": seconds(row.created_at),
        "changed_at": seconds(row.changed_at),
    }


def import_wire(row: ImportRow) -> AdapterImport:
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
        created_at=seconds(row.created_at),
        updated_at=seconds(row.updated_at),
    )
