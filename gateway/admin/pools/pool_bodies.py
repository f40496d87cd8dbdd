"""What is asked for when a pool is made or changed, and what is wrong with it, field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.paging import wrong_value
from gateway.db.pools.managed import unknown_grants
from gateway.db.pools.pools import Grant
from gateway.domain.pools.engine_settings import BadEngineSetting, check_engine_settings
from gateway.domain.pools.model_source import check_model_source
from gateway.domain.pools.states import Access, check_pool_name

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_GRANTS = 1000
MAX_SETTINGS = 64

Id = Annotated[str, Meta(min_length=1, max_length=64)]
NumReplicas = Annotated[int, Meta(ge=0, le=1000)]
SettingValue = Annotated[str, Meta(max_length=256)] | int | float
Settings = Annotated[dict[Annotated[str, Meta(max_length=64)], SettingValue], Meta(max_length=MAX_SETTINGS)]


class PoolGrantIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """organization_id: the caller's own, if it is left out. project_id: one of its projects; all, if it is left out."""

    organization_id: Id | None = None
    project_id: Id | None = None


Grants = Annotated[tuple[PoolGrantIn, ...], Meta(max_length=MAX_GRANTS)]


class CreatePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: by which requests ask for the base model. model: `demo`, the absolute path of a folder or of a `.gguf` file
    on the hosts, or a repository id of the Hugging Face hub. settings: engine settings that differ from the hosts' own,
    by name. grants: who may use a pool whose access is "listed"."""

    name: str
    model: str
    settings: Settings = {}
    num_replicas: NumReplicas = 1
    access: Access = "all"
    grants: Grants = ()


class UpdatePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as it is. model, settings: together the next revision of the pool, whose replicas take the
    place of the present ones; settings replace all those before."""

    model: str | UnsetType = UNSET
    settings: Settings | UnsetType = UNSET
    num_replicas: NumReplicas | UnsetType = UNSET
    access: Access | UnsetType = UNSET
    grants: Grants | UnsetType = UNSET


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no pool may have."""
    try:
        check_pool_name(name)
    except ValueError as error:
        raise wrong_value("name", _as_reason(error)) from None


def check_model(model: str) -> None:
    """Raise InvalidRequest for a text that names no model."""
    try:
        check_model_source(model)
    except ValueError as error:
        raise wrong_value("model", _as_reason(error)) from None


def read_settings(settings: dict[str, str | int | float]) -> dict[str, str]:
    """Return engine settings as texts. Raises InvalidRequest naming the one that is wrong."""
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()}
    try:
        check_engine_settings(texts)
    except BadEngineSetting as error:
        raise wrong_value(f"settings.{error.name}", str(error)) from None
    return texts


async def read_grants(conn: Connection, organization_id: str, wanted: Sequence[PoolGrantIn]) -> list[Grant]:
    """Return the grants; organization_id is the caller's. Raises InvalidRequest naming the one that is wrong."""
    grants = [Grant(each.organization_id or organization_id, each.project_id) for each in wanted]
    for place, grant in enumerate(grants):
        if grant in grants[:place]:
            raise wrong_value(f"grants[{place}]", "it is given twice")
    for place in await unknown_grants(conn, grants):
        field = "organization_id" if grants[place].project_id is None else "project_id"
        raise wrong_value(f"grants[{place}].{field}", "there is none with this id")
    return grants


def check_access(access: Access, grants: Sequence[PoolGrantIn | Grant]) -> None:
    """Raise InvalidRequest where an access and its grants do not go together."""
    if access == "listed" and not grants:
        raise wrong_value("grants", "a pool whose access is 'listed' needs somebody who may use it")
    if access == "all" and grants:
        raise wrong_value("grants", "they belong to the access 'listed', and the access is 'all'")


def _as_reason(error: ValueError) -> str:
    """Return the error's sentence as it goes on after a colon."""
    message = str(error).removesuffix(".")
    return message[:1].lower() + message[1:]
