"""A key that a project has brought for the servers behind a pool, in the clear: for one request, and for no log."""

from __future__ import annotations

from typing import Literal

import msgspec

KeyUse = Literal["pool", "own", "missing"]
"""The key with which a project's requests are sent to a pool.

own: the project's key; the project is charged for no tokens.
missing: the project needs a key of its own and has none."""


class ProviderKey(msgspec.Struct, frozen=True):
    """A project's own key."""

    hint: str
    """The last characters of the key, by which its owner knows it."""
    secret: str

    def __repr__(self) -> str:
        """Return the key as text without its secret, so that no log shows it."""
        return f"ProviderKey(hint={self.hint!r})"
