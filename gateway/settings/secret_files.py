"""Secrets in files: `LORIKEET_CONTENT_KEY_FILE` names a file with the value of `LORIKEET_CONTENT_KEY`.

A variable of the environment shows in `systemctl show`, in a pod's description and in every child process; a file of
systemd's credentials, of a Kubernetes secret or of Compose shows only to those who may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

SUFFIX = "_FILE"
MAX_BYTES = 64 << 10
"""The most bytes of a secret's file."""


class BadSecretFile(ValueError):
    """The error for a secret's file that cannot be used; the message is one line that names the variable."""


def with_secrets(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the environment with the value of every secret whose file is named, in place of the file's name.

    names: the variables of secrets. One line break at the end of a file is no part of the value.

    Raises BadSecretFile: when a variable and its file are both set, or the file cannot be read, is empty, is no text or
    is too large.
    """
    values = dict(environ)
    for name in names:
        path = values.pop(name + SUFFIX, "")
        if not path:
            continue
        if values.get(name):
            raise BadSecretFile(f"{name} and {name}{SUFFIX} are both set: which one is meant?")
        values[name] = _read(name + SUFFIX, path)
    return values


def _read(variable: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadSecretFile(f"{variable}={path!r}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise BadSecretFile(f"{variable}={path!r}: Expected a file of at most {MAX_BYTES >> 10} KiB")
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadSecretFile(f"{variable}={path!r}: Expected text in UTF-8") from None
    if not text or "\0" in text or "\n" in text:
        raise BadSecretFile(f"{variable}={path!r}: Expected a file with one line, which is the secret")
    return text
