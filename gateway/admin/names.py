"""Names of models that a project makes for itself: aliases, experiments and routes share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.ref import check_adapter_name
from gateway.admin.organization.projects import active_project
from gateway.admin.paging import wrong_value
from gateway.db.adapters import aliases
from gateway.db.pools.managed import is_usable
from gateway.db.pools.pools import keep_pools
from gateway.domain.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from gateway.admin.services import AdminServices
    from gateway.db.pool import Connection

MAX_NAMES = 1000
"""The most names of a project: aliases, experiments and routes together."""


def check_name(field: str, name: str, what: str = "adapter name") -> None:
    """Check that a name has the form of an adapter's name. what: the kind of name, in words for the message.

    Raises InvalidRequest: when the name has another form; the error names `field`.
    """
    try:
        check_adapter_name(name, what)
    except ValueError as error:
        raise InvalidRequest(f"{error}.", param=field, code="invalid_value") from None


async def claim_name(
    conn: Connection, services: AdminServices, organization_id: str, project_id: str, name: str
) -> list[aliases.AliasRow]:
    """Check that a project may have a new name, and return all names that the project has.

    To be called in the transaction that makes the name: until its end nobody else makes a name in the project.

    Raises NotFound, Conflict: when the project is not there or is archived, or when it has the name already.
    Raises InvalidRequest: when a base model has the name, or when the project has as many names as there can be.
    """
    await keep_pools(conn)
    await active_project(conn, organization_id, project_id)
    if await is_base(conn, services, name, organization_id, project_id):
        raise wrong_value("name", "a base model has this name")
    names = await aliases.list_aliases(conn, project_id)
    for each in names:
        if each.name == name:
            raise Conflict(_name_taken_text(each), param="name")
    if len(names) >= MAX_NAMES:
        raise InvalidRequest(
            f"The project already has {MAX_NAMES} aliases and routes, the most there can be. Remove one first."
        )
    return names


async def is_base(conn: Connection, services: AdminServices, name: str, organization_id: str, project_id: str) -> bool:
    """Tell whether a base model that the project may use has this name.

    Return False for a base model that only other projects may use, so that nobody learns its name.
    """
    if name in services.bases.visible(project_id, organization_id):
        return True
    return await is_usable(conn, name, organization_id, project_id)


def _name_taken_text(row: aliases.AliasRow) -> str:
    """Return a sentence on the alias, experiment or route that has the name already."""
    if row.target_kind == "experiment":
        return f"The experiment '{row.experiment}' has the name '{row.name}'."
    if row.target_kind == "route":
        return f"A route has the name '{row.name}' already; an update of that one is a new version."
    return f"The project already has an alias named '{row.name}'."
