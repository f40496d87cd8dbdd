"""API keys as the admin API shows them, a project's and an operator's. The key itself is shown once, when made."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gateway.admin.common import seconds_or_none, unix_seconds
from gateway.db.organization.keys import KeyRow


class OwningUser(msgspec.Struct, frozen=True):
    """The user that owns a key."""

    id: str
    name: str
    email: str
    object: Literal["organization.user"] = "organization.user"


class OwningServiceAccount(msgspec.Struct, frozen=True):
    """The service account that owns a key."""

    id: str
    name: str
    object: Literal["organization.project.service_account"] = "organization.project.service_account"


class Owner(msgspec.Struct, frozen=True):
    """The owner of a key: a user or a service account. The other field is null."""

    type: Literal["user", "service_account"]
    user: OwningUser | None = None
    service_account: OwningServiceAccount | None = None


class ApiKey(msgspec.Struct, frozen=True):
    """A key of a project, without its secret."""

    id: str
    project_id: str
    name: str
    redacted_value: str
    scopes: list[str]
    models: list[str] | None
    """Ids of the models that the key may call; null allows all."""
    ip_allowlist: list[str] | None
    """Networks from which the key may be used; null allows all."""
    owner: Owner | None
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null never expires."""
    revoked_at: int | None
    """Unix seconds; null while the key is not revoked."""
    suspended_at: int | None
    """Unix seconds; null while the key is not suspended."""
    last_used_at: int | None
    """Unix seconds; null while the key was not used yet."""
    previous_secret_expires_at: int | None
    """Unix seconds until which the secret before the last rotation is valid."""
    object: Literal["organization.project.api_key"] = "organization.project.api_key"


class CreatedKey(ApiKey, frozen=True, kw_only=True):
    """A new key of a project with its secret."""

    value: str
    """The key, which is shown this once."""


class AdminApiKey(msgspec.Struct, frozen=True):
    """An operator's key, without its secret."""

    id: str
    name: str
    redacted_value: str
    scopes: list[str]
    ip_allowlist: list[str] | None
    """Networks from which the key may be used; null allows all."""
    owner: Owner | None
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null never expires."""
    revoked_at: int | None
    """Unix seconds; null while the key is not revoked."""
    last_used_at: int | None
    """Unix seconds; null while the key was not used yet."""
    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"


class CreatedAdminKey(AdminApiKey, frozen=True, kw_only=True):
    """A new operator's key with its secret."""

    value: str
    """The key, which is shown this once."""


class OwnedKey(msgspec.Struct, frozen=True):
    """A key that a person owns, without its secret."""

    id: str
    project_id: str | None
    """The project of the key; null for an operator's key."""
    name: str
    redacted_value: str
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null never expires."""
    revoked_at: int | None
    """Unix seconds; null while the key is not revoked."""
    suspended_at: int | None
    """Unix seconds; null while the key is not suspended."""
    last_used_at: int | None
    """Unix seconds; null while the key was not used yet."""
    object: Literal["organization.user.api_key"] = "organization.user.api_key"


def api_key(row: KeyRow) -> ApiKey:
    """Return a project's API key as the admin API shows it, without the secret."""
    return ApiKey(**_project_fields(row))


def created_key(row: KeyRow, value: str) -> CreatedKey:
    """Return a project's API key together with the secret value, which the API shows this once."""
    return CreatedKey(**_project_fields(row), value=value)


def admin_api_key(row: KeyRow) -> AdminApiKey:
    """Return an operator's key as the admin API shows it, without the secret."""
    return AdminApiKey(**_fields(row))


def created_admin_key(row: KeyRow, value: str) -> CreatedAdminKey:
    """Return an operator's key together with the secret value, which the API shows this once."""
    return CreatedAdminKey(**_fields(row), value=value)


def owned_key(row: KeyRow) -> OwnedKey:
    """Return a key of a project or an operator as the list of a user's keys shows it, without the secret."""
    return OwnedKey(
        id=row.id,
        project_id=row.project_id,
        name=row.name,
        redacted_value=_redacted_key(row),
        created_at=unix_seconds(row.created_at),
        expires_at=seconds_or_none(row.expires_at),
        revoked_at=seconds_or_none(row.revoked_at),
        suspended_at=seconds_or_none(row.suspended_at),
        last_used_at=seconds_or_none(row.last_used_at),
    )


def _fields(row: KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "redacted_value": _redacted_key(row),
        "scopes": row.scopes,
        "ip_allowlist": None if row.ip_allow is None else [str(network) for network in row.ip_allow],
        "owner": _owner(row),
        "created_at": unix_seconds(row.created_at),
        "expires_at": seconds_or_none(row.expires_at),
        "revoked_at": seconds_or_none(row.revoked_at),
        "last_used_at": seconds_or_none(row.last_used_at),
    }


def _project_fields(row: KeyRow) -> dict[str, Any]:
    return _fields(row) | {
        "project_id": row.project_id,
        "models": row.models,
        "suspended_at": seconds_or_none(row.suspended_at),
        "previous_secret_expires_at": seconds_or_none(row.previous_expires_at),
    }


def _redacted_key(row: KeyRow) -> str:
    return f"{row.public}***"


def _owner(row: KeyRow) -> Owner | None:
    name = row.owner_name or ""
    if row.owner_user_id is not None:
        return Owner("user", user=OwningUser(row.owner_user_id, name, row.owner_email or ""))
    if row.owner_service_account_id is not None:
        return Owner("service_account", service_account=OwningServiceAccount(row.owner_service_account_id, name))
    return None
