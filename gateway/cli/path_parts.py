"""Checks names and ids that become parts of a request's path.

A name that breaks the rules could lead to another route, so it is refused before anything is sent.
"""

from __future__ import annotations

import re

from gateway.cli.errors import CommandFailed

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def name_part(name: str, what: str = "adapter name") -> str:
    """Return the name of an adapter, or of an alias, which follows the same rule.

    what: the word for the name in the error's message.

    Raises CommandFailed: when the name breaks the rule.
    """
    from adapters.ref import check_adapter_name

    try:
        check_adapter_name(name, what)
    except ValueError as error:
        raise CommandFailed(str(error)) from None
    return name


def checked_path(path: str) -> str:
    """Return the path of a request.

    Raises CommandFailed: when a part of it would lead to another route, as `..` does.
    """
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise CommandFailed(f"{path[:200]!r} has an empty part, or one of dots: this is not an id or a name")
    return path


def id_part(text: str) -> str:
    """Return an id as the server makes ids, or a period such as 2026-01. Raises CommandFailed: when it is neither."""
    if _ID.fullmatch(text) is None:
        raise CommandFailed(f"{text[:129]!r} is not an id: an id has letters, digits, '_' and '-' only")
    return text
