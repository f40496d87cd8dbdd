"""The arguments by which the verbs of `lorikeet adapter` name a tenant, an adapter and a version."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.path_parts import name_part

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


def add_tenant(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the tenant."""
    parser.add_argument("--tenant", required=True, metavar="NAME", help="the tenant that owns the adapter")


def add_adapter(parser: argparse.ArgumentParser, metavar: str = "NAME") -> None:
    """Add the arguments `tenant` and `name`.

    metavar: the name by which the help shows `name`, such as NAME[@VERSION].
    """
    add_tenant(parser)
    parser.add_argument("name", metavar=metavar, help=_help_text(metavar))


def _help_text(metavar: str) -> str:
    """Return the help of an argument that names an adapter, or one version of an adapter."""
    if "VERSION" in metavar:
        return "name and version of the adapter, such as support@3"
    return "name of the adapter, such as support"


def adapter_path(client: AdminClient, tenant: str, name: str) -> str:
    """Return the path of an adapter.

    Raises CommandFailed: for a text that is not a name, and where there is no such tenant.
    """
    part = name_part(name)
    return f"{client.tenant_path(tenant)}/adapters/{part}"


def split_version(text: str) -> tuple[str, int | None]:
    """Split `NAME@NUMBER` into the name and the number; the number is None where only a name is given.

    Raises CommandFailed: when what follows the @ is no number.
    """
    name, at, version = text.partition("@")
    if not at:
        return text, None
    if not (name and version.isascii() and version.isdecimal()):
        raise CommandFailed(f"'{text}' names no version: give an adapter and a number, such as support@3")
    return name, int(version)


def version_path(client: AdminClient, tenant: str, text: str) -> str:
    """Return the path of a version.

    Raises CommandFailed: for a text that names no version, and where there is no such tenant.
    """
    name, version = split_version(text)
    if version is None:
        raise CommandFailed(f"'{text}' needs a version, as in {text}@3; `lorikeet adapter versions` lists all versions")
    return f"{adapter_path(client, tenant, name)}/versions/{version}"
