"""An adapter's settings over HTTP: defaults for requests, and whether it stays on engines."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.access import needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.adapters import adapter_settings
from gateway.db.organization import audit
from gateway.domain.adapters.defaults import Defaults
from gateway.domain.errors import NotFound, PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.http.fields import (
    MinP,
    NumTokens,
    Penalty,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)

MAX_SYSTEM_PROMPT_CHARS = 32_768


class SetDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values for requests that name none. null clears a value; a field that is left out stays as it is."""

    temperature: Temperature | UnsetType | None = UNSET
    top_p: TopP | UnsetType | None = UNSET
    top_k: TopK | UnsetType | None = UNSET
    min_p: MinP | UnsetType | None = UNSET
    presence_penalty: Penalty | UnsetType | None = UNSET
    frequency_penalty: Penalty | UnsetType | None = UNSET
    repetition_penalty: RepetitionPenalty | UnsetType | None = UNSET
    max_tokens: NumTokens | UnsetType | None = UNSET
    """The most tokens that a request without a number of its own generates, where there is room."""
    system_prompt: Annotated[str, Meta(min_length=1, max_length=MAX_SYSTEM_PROMPT_CHARS)] | UnsetType | None = UNSET
    """The first message of a conversation that has no system message."""


class SetAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New settings of an adapter. A field that is left out stays as it is."""

    defaults: SetDefaults = SetDefaults()
    """Values for requests that name none."""
    pinned: bool | UnsetType = UNSET
    """True if the adapter stays loaded on every engine. Only the operator may change this."""


class AdapterSettings(msgspec.Struct, frozen=True):
    """The settings of an adapter, which all its versions share."""

    id: str
    name: str
    defaults: Defaults
    """The defaults that are set."""
    pinned: bool
    """True if the adapter stays loaded on every engine."""
    object: Literal["organization.project.adapter.settings"] = "organization.project.adapter.settings"


class AdapterSettingsController(Controller):
    """The endpoint for the settings of an adapter, which all versions of the adapter share."""

    path = "/projects/{project_id:str}/adapters/{name:str}"

    @post(status_code=200, opt=needs("adapters.write", body=SetAdapter))
    async def set_adapter(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> AdapterSettings:
        """Change the settings of an adapter, which all its versions share.

        The values of a request win over the settings.
        """
        wanted = await read_body(request, SetAdapter)
        _check(wanted, caller)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            row = await adapter_settings.find_settings(conn, project_id, name)
            if row is None:
                raise NotFound(f"The project has no adapter named '{name}'.", param="name")
            changed = adapter_settings.SettingsRow(
                row.adapter_id,
                msgspec.structs.replace(row.defaults, **_given_fields(wanted.defaults)),
                row.pinned if wanted.pinned is UNSET else wanted.pinned,
            )
            if changed != row:
                await adapter_settings.set_settings(conn, changed)
                before, after, event = _recorded(row, name), _recorded(changed, name), "adapter.set"
                await audit.record(
                    conn, audit_author(caller), event, row.adapter_id, project_id=project_id, before=before, after=after
                )
        return _wire(changed, name)


def _check(wanted: SetAdapter, caller: Actor) -> None:
    """Check the new settings.

    Raises InvalidRequest: when the system prompt holds a NUL character.
    Raises PermissionDenied: when a caller with a role in the project alone pins or unpins the adapter.
    """
    if isinstance(wanted.defaults.system_prompt, str) and "\0" in wanted.defaults.system_prompt:
        raise wrong_value("defaults.system_prompt", "it must not hold a NUL character")
    if wanted.pinned is not UNSET and "adapters.write" not in caller.permissions:
        raise PermissionDenied(
            "Only keys and people of the organization may pin or unpin adapters; a role in the project is not enough."
        )


def _given_fields(wanted: SetDefaults) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not UNSET}


def _recorded(row: adapter_settings.SettingsRow, name: str) -> AdapterSettings:
    """Return the settings for the audit log, with a mark of the system prompt in place of its text.

    The audit log outlasts the project's content.
    """
    shown, text = _wire(row, name), row.defaults.system_prompt
    if text is None:
        return shown
    digest = hashlib.sha256(text.encode()).hexdigest()
    return msgspec.structs.replace(
        shown, defaults=msgspec.structs.replace(row.defaults, system_prompt=f"sha256:{digest}")
    )


def _wire(row: adapter_settings.SettingsRow, name: str) -> AdapterSettings:
    return AdapterSettings(row.adapter_id, name, row.defaults, row.pinned)
