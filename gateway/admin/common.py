"""Helpers that routes of the admin API share: text that people write, times on the wire, authors of changes."""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from gateway.admin.paging import wrong_value
from gateway.db.organization.audit import Author
from gateway.domain.tenancy.actor import Actor

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""A name that people write. It is checked by `check_name` as well."""

UNPRINTABLE = ("Cc", "Cf", "Zl", "Zp")
"""Unicode categories of control characters, invisible characters (such as those that reverse text), and line
separators."""

MARKUP = '<>"`\\'

UnixTime = Annotated[int, msgspec.Meta(ge=0, le=2**32)]


def audit_author(actor: Actor) -> Author:
    """Return the actor in the form in which the audit log names authors."""
    return Author(
        organization_id=actor.organization_id,
        kind=actor.kind,
        id=actor.id,
        email=actor.email,
        address=actor.address,
        request_id=actor.request_id,
    )


def with_revoked_keys(shown: msgspec.Struct, key_ids: Sequence[str]) -> dict[str, Any]:
    """Return the record of a removed object for the audit log, with the ids of the keys revoked with it."""
    return msgspec.structs.asdict(shown) | {"revoked_api_key_ids": key_ids}


def check_name(name: str, param: str = "name") -> None:
    """Check a name that people write.

    Raises InvalidRequest: when the name begins or ends with a space, or holds control characters or invisible ones.
    """
    if name != name.strip():
        raise wrong_value(param, "it must not begin or end with a space")
    if any(unicodedata.category(character) in UNPRINTABLE for character in name):
        raise wrong_value(param, "it must not hold control characters or invisible ones")


def check_address(address: str, param: str) -> None:
    """Check an e-mail address or a URL.

    Raises InvalidRequest: when the text holds spaces, control characters, or what other programs take for markup.
    """
    if any(each.isspace() or each in MARKUP or unicodedata.category(each) in UNPRINTABLE for each in address):
        raise wrong_value(param, f"it must not hold spaces, control characters or any of {MARKUP}")


def unix_seconds(time: datetime.datetime) -> int:
    """Return a time as whole Unix seconds."""
    return int(time.timestamp())


def seconds_or_none(time: datetime.datetime | None) -> int | None:
    """Return a time as whole Unix seconds, and None for None."""
    return int(time.timestamp()) if time else None


def utc_time(unix_s: int) -> datetime.datetime:
    """Return the time, in UTC, of Unix seconds."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def expiry_time(expires_at: int | None) -> datetime.datetime | None:
    """Return the time of an expiry in Unix seconds.

    expires_at: None: there is no expiry, and None is returned.

    Raises InvalidRequest: for a time that has passed.
    """
    if expires_at is None:
        return None
    at = utc_time(expires_at)
    if at <= datetime.datetime.now(datetime.UTC):
        raise wrong_value("expires_at", "this time has passed")
    return at
