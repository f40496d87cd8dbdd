"""The keys that kept content is encrypted with: from the setting, or a file in the data folder that is made once.

Several keys may be given. The first encrypts; each decrypts content that it has encrypted, so that keys can be rotated:
first add the new one behind the old one in every gateway, then put it in front, and drop the old one once nothing that
it encrypted is left.
"""

from __future__ import annotations

import base64
import secrets
import stat
from pathlib import Path

import structlog

from gateway.domain.content.keys import KEY_BYTES, BadContentKey, ContentKey, parse_keys
from gateway.support.process import make_private

log = structlog.get_logger(__name__)


def content_keys(setting: str | None, path: Path) -> tuple[ContentKey, ...]:
    """Return the keys of the setting or, without one, of the file, which is made with a new key if there is none.

    Warn of a file that others than its owner may read or write.

    Raises BadContentKey: when a key is wrong.
    """
    if setting is not None:
        return parse_keys(setting)
    made = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    try:
        keys = parse_keys(make_private(path, f"{made}\n"))
        _warn_if_open(path)
        return keys
    except OSError as error:
        raise BadContentKey(
            f"the key that encrypts stored content can be neither read nor created: {path}: {error.strerror}"
        ) from None
    except (BadContentKey, UnicodeDecodeError):
        raise BadContentKey(
            f"{path} does not hold the key that encrypts stored content: restore the file from a backup"
        ) from None


def _warn_if_open(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        log.warning(
            "content_key_open_to_others",
            path=str(path),
            mode=f"{mode:03o}",
            error=f"run `chmod 600 {path}` to close it",
        )
