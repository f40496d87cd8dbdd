"""Opens encrypted values of a restored database, to know whether the keys at hand are the right ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.db.content.sealed import newest_sealed
from gateway.domain.content.keys import BadContentKey, parse_keys
from gateway.domain.errors import ContentUnreadable
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.db.pool import Connection

CONTENT_KEY_NAME = "content.key"
NUM_OPENED = 1000
"""The number of the newest values of each encrypted column that are decrypted."""


class OpenedValues(msgspec.Struct, frozen=True):
    """The encrypted values that keys were tried on."""

    num_values: int
    wrong: list[str]
    """A name for each value that the keys do not open."""


def read_cipher(setting: str | None, files: Iterable[Path]) -> Cipher | None:
    """Return a cipher with the keys of LORIKEET_CONTENT_KEY or, without them, of the first of the files that exists.

    Return None where there are no keys at all.

    Raises BadContentKey: when a key is wrong.
    Raises OSError: when a file cannot be read.
    """
    if setting is not None:
        return Cipher(parse_keys(setting))
    for path in files:
        if path.is_file():
            try:
                return Cipher(parse_keys(path.read_text()))
            except UnicodeDecodeError:
                raise BadContentKey(f"{path} does not hold a key") from None
    return None


async def open_newest(conn: Connection, cipher: Cipher | None) -> OpenedValues:
    """Decrypt the newest values of every encrypted column. The database's schema is this code's.

    cipher: None: there are no keys, and every value is wrong.
    """
    wrong, rows = [], await newest_sealed(conn, NUM_OPENED)
    for row in rows:
        try:
            if cipher is None:
                raise ContentUnreadable
            cipher.open(Sealed(row.content_key, row.sealed), Place(row.project_id, row.name, row.id))
        except ContentUnreadable:
            wrong.append(f"{row.name} of {row.id}")
    return OpenedValues(len(rows), wrong)
