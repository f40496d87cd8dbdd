"""References to adapters: the owner, the owner's name for it, and the key by which engines know its content.

The digest identifies the content (`adapters.digest`).
"""

from __future__ import annotations

import hashlib
import re

import msgspec

MAX_NAME_CHARS = 64
DIGEST_CHARS = 64
# 64 bits are enough: projects' ids are the gateway's own, so nobody can search for two that collide.
TENANT_CHARS = 16

_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
_KEY = re.compile(rf"([0-9a-f]{{{DIGEST_CHARS}}})(?:\.[0-9a-f]{{{TENANT_CHARS}}})?")


class AdapterRef(msgspec.Struct, frozen=True):
    """One version of a tenant's adapter."""

    tenant: str
    """The id of the project that owns the adapter."""
    name: str
    version: int
    digest: str
    """The digest of the version's content."""

    @property
    def key(self) -> str:
        """The key by which engines know the content."""
        return content_key(self.tenant, self.digest)


def content_key(tenant: str, digest: str) -> str:
    """Return the key of a tenant's content: `<digest>.<hash of the tenant>`.

    The same bytes of two tenants are two things on a device, so that the time to load them tells neither tenant what
    the other has. The same bytes of one tenant are one thing under all its names.
    """
    return f"{digest}.{hashlib.sha256(tenant.encode()).hexdigest()[:TENANT_CHARS]}"


def digest_of(key: str) -> str:
    """Return the digest in a content key, by which the store knows the content; a digest alone is a key, too.

    Raises ValueError: for anything else, since a key comes from another process and its digest becomes a path.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key[:100]!r} is not the key of an adapter's content")
    return match[1]


def check_adapter_name(name: str, what: str = "adapter name") -> None:
    """Check that a name has 1 to 64 of a-z, 0-9, dot, underscore and hyphen, the first a letter or digit.

    what: the word for the name in the error's message.

    Raises ValueError: when the name has another form.
    """
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{what} {name[: MAX_NAME_CHARS + 1]!r} is not valid: use 1 to {MAX_NAME_CHARS} characters of "
            "a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        )
