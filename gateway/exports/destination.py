"""The destinations of exports, as people write them and as they are stored: checked, and the secret kept apart.

A folder lies below the one folder that the server keeps for exports, whoever asks: an organization's administrator is
not to write elsewhere on the machine.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import httpx
import msgspec
from msgspec import Meta

ROOT = "exports"
"""The name of the folder for exports in the data folder; each organization has a folder of its own below it."""

MAX_TEXT = 512

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,64}")

Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class WrongDestination(ValueError):
    """The error for a wrong destination of exports.

    field: the wrong field below `destination`.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class FolderDestination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="folder"):
    """A folder within the server's data folder."""

    path: Text
    """The path below the server's folder for exports."""


class S3Destination(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="s3"
):
    """A bucket of Amazon S3, or of a store that speaks its protocol."""

    bucket: Text
    access_key_id: Text
    secret_access_key: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    """The secret. It is stored apart and never shown."""
    prefix: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    region: Text = "us-east-1"
    endpoint: Text | None = None
    """The URL of a store other than Amazon's."""


Destination = FolderDestination | S3Destination
Schedule = Literal["daily", "monthly"]


def check_destination(destination: Destination) -> None:
    """Check the form of a destination. Whether an endpoint's address is public is checked at each delivery.

    Raises WrongDestination: when a field is wrong.
    """
    if isinstance(destination, FolderDestination):
        _check_path("path", destination.path)
        return
    if not destination.secret_access_key:
        raise WrongDestination("secret_access_key", "a destination with an access key needs its secret")
    if not destination.access_key_id.isascii() or not destination.access_key_id.isprintable():
        raise WrongDestination("access_key_id", "expected printable ASCII characters")
    if _BUCKET.fullmatch(destination.bucket) is None:
        raise WrongDestination("bucket", "expected a bucket's name: lower-case letters, digits, dots and hyphens")
    if _REGION.fullmatch(destination.region) is None:
        raise WrongDestination("region", "expected a region's name, such as eu-central-1")
    if destination.prefix:
        _check_path("prefix", destination.prefix)
    if destination.endpoint is not None:
        _check_endpoint(destination.endpoint)


def destination_text(organization_id: str, shown: dict[str, Any]) -> str:
    """Return a destination in words: a folder within the server's data folder, or the URL of a bucket."""
    if shown["type"] == "folder":
        return f"{ROOT}/{organization_id}/{shown['path']}"
    return f"s3://{shown['bucket']}/{shown.get('prefix', '')}".rstrip("/")


def split_secret(destination: Destination) -> tuple[dict[str, Any], str | None]:
    """Return a destination as it is stored and shown, and its secret."""
    shown: dict[str, Any] = msgspec.to_builtins(destination)
    secret: str | None = shown.pop("secret_access_key", None)
    return shown, secret


def join_secret(shown: dict[str, Any], secret: str | None) -> Destination:
    """Return the destination that `split_secret` divided.

    shown: the fields of the destination without its secret. secret: None where it has none.
    """
    whole = shown if secret is None else shown | {"secret_access_key": secret}
    return msgspec.convert(whole, Destination)  # type: ignore[no-any-return]  # a union is no type


def _check_path(field: str, path: str) -> None:
    if not all(_PART.fullmatch(part) for part in path.split("/")):
        raise WrongDestination(
            field, "expected names of letters, digits, dots, hyphens and underscores between slashes"
        )


def _check_endpoint(text: str) -> None:
    try:
        url = httpx.URL(text)
        url.host.encode("idna")  # as resolvers do: no label is empty or longer than 63
        is_good = url.scheme in ("http", "https") and bool(url.host) and not url.userinfo and not url.query
    except (httpx.InvalidURL, UnicodeError):
        is_good = False
    if not is_good or "\0" in text:
        raise WrongDestination("endpoint", "expected a URL of http or https with a host's name, without a user name")
