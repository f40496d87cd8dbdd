"""Sources of adapters, and which of them the operator allows: text in, a decision out. No I/O.

    hf://organization/repository[@revision]    files of a repository of the Hugging Face hub
    https://host[:port]/path                   an archive
    s3://bucket[/prefix]                       a folder with the two files

Allowed sources are compared part by part, never as text: the host exactly, the path by whole segments. To keep one
meaning for every reader, a source has no user name, query, fragment or percent-encoded character, and no `.` or `..`.
"""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit

import msgspec

MAX_SOURCE_CHARACTERS = 1024
HTTPS_PORT = 443

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9._~@:+=,-]{1,255}")


class WrongSource(ValueError):
    """The error for a text that is no source, or no allowed one; the message says why."""


class Source(msgspec.Struct, frozen=True):
    """A place that adapters come from; in the list of allowed sources, all places below it as well."""

    scheme: Literal["hf", "https", "s3"]
    host: str
    """The host of https, or the bucket of s3; empty for the hub."""
    port: int
    """The port of https."""
    segments: tuple[str, ...]
    """The segments of the path; for the hub, organization and repository."""
    revision: str | None = None
    """The revision on the hub; None for its main branch or, in the list, for every revision."""

    def holds(self, other: Source) -> bool:
        """Tell whether another source is the same as this one, or below it."""
        return (
            (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
            and self.segments == other.segments[: len(self.segments)]
            and self.revision in (None, other.revision)
        )

    @property
    def path(self) -> str:
        """The path of the source within its bucket, host or repository."""
        return "/".join(self.segments)

    @property
    def url(self) -> str:
        """The URL of an https source."""
        port = "" if self.port == HTTPS_PORT else f":{self.port}"
        return f"https://{self.host}{port}/{self.path}"


class AllowedSources:
    """The operator's list of sources. With an empty list nothing is fetched."""

    def __init__(self, places: tuple[Source, ...]) -> None:
        self._places = places

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse places between commas.

        Raises WrongSource: when one of them is no place.
        """
        return cls(tuple(parse_place(part.strip()) for part in text.split(",") if part.strip()))

    @property
    def is_empty(self) -> bool:
        """True if no source is allowed."""
        return not self._places

    def admit(self, text: str) -> Source:
        """Parse a text as a source, and return it if it is allowed.

        Raises WrongSource: when the text is not a source, or names one that is not allowed.
        """
        source = _parse(text, is_place=False)
        if self.is_empty:
            raise WrongSource(
                "this server allows no sources; the operator lists the allowed ones in LORIKEET_ADAPTER_SOURCES"
            )
        if not self.holds(source):
            raise WrongSource("the source is not among the sources that LORIKEET_ADAPTER_SOURCES allows")
        return source

    def admits_url(self, url: str) -> bool:
        """Tell whether an https source of this list may redirect to this URL, which may have a query."""
        try:
            return self.holds(_parse(url.partition("?")[0], is_place=False))
        except WrongSource:
            return False

    def holds(self, source: Source) -> bool:
        """Tell whether a source is allowed."""
        return any(place.holds(source) for place in self._places)


def parse_place(text: str) -> Source:
    """Parse one place, which stands for all below it.

    Raises WrongSource: when the text is no such place.
    """
    return _parse(text, is_place=True)


def _parse(text: str, *, is_place: bool) -> Source:
    """Parse a source.

    is_place: True for a place of the list. It stands for all its contents, so the end of its path may be left out.
    """
    if len(text) > MAX_SOURCE_CHARACTERS:
        raise WrongSource(f"the source is longer than {MAX_SOURCE_CHARACTERS} characters")
    scheme, separator, rest = text.partition("://")
    if scheme not in ("hf", "https", "s3") or not separator:
        raise WrongSource("expected hf://organization/repository[@revision], https://host/path or s3://bucket/prefix")
    if is_place or scheme == "s3":
        rest = rest.removesuffix("/")
    if scheme == "hf":
        return _parse_hub(rest, is_place=is_place)
    authority, slash, path = rest.partition("/")
    segments = tuple(path.split("/")) if slash else ()
    if not all(_SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in segments):
        raise WrongSource(
            "expected a path of letters, digits and ._~@:+=,- between single slashes, without '.', '..', a query or "
            "percent-encoded characters"
        )
    if scheme == "s3":
        if _BUCKET.fullmatch(authority) is None:
            raise WrongSource("expected a bucket's name after s3://: lower-case letters, digits, dots and hyphens")
        return Source("s3", authority, 0, segments)
    if not segments and not is_place:
        raise WrongSource("expected the path of an archive after the host")
    return Source("https", *_parse_authority(authority), segments)


def _parse_hub(rest: str, *, is_place: bool) -> Source:
    name, at, revision = rest.partition("@")
    segments = tuple(name.split("/"))
    lengths = (1, 2) if is_place and not at else (2,)
    if len(segments) not in lengths or not all(map(_is_hub_name, segments)):
        raise WrongSource("expected hf://organization/repository, or hf://organization/repository@revision")
    if at and (len(revision) > 128 or ".." in revision or _REVISION.fullmatch(revision) is None):
        raise WrongSource("expected a branch, a tag or a commit after '@'")
    return Source("hf", "", 0, segments, revision or None)


def _is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and ".." not in name


def _parse_authority(authority: str) -> tuple[str, int]:
    """Return the host and the port of a URL's authority, such as `example.org:8443`.

    Raises WrongSource: when the host or the port is wrong, or a user name is there.
    """
    try:
        parts = urlsplit(f"//{authority}")
        host, port = authority.removesuffix(f":{parts.port}").lower(), parts.port
    except ValueError:
        raise WrongSource("expected a port from 1 to 65535 after the host") from None
    if _HOST.fullmatch(host) is None or ".." in host:
        raise WrongSource("expected a host's name, without a user name, after https://")
    if port == 0:
        raise WrongSource("expected a port from 1 to 65535 after the host")
    return host, HTTPS_PORT if port is None else port
