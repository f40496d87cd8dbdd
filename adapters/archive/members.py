"""Sorts the names in an archive or folder: an adapter's two files, names to ignore, names that make it be refused.

Works on names and kinds alone. Names never become paths: of all members, only the two files are taken, under names of
our own.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

from adapters.errors import AdapterRejected
from adapters.peft_format import FILE_NAMES

MAX_MEMBERS = 1000
MAX_NAME_CHARS = 1024
MAX_LISTED = 50

_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"})
_ARCHIVES = frozenset({".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar"})
# Categories of characters that print nothing or something else than they are: control, format, surrogate, private and
# unassigned characters.
_UNPRINTED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DRIVE = re.compile(r"[A-Za-z]:")


class Members:
    """The check of the members of an archive or folder, one after the other.

    ignored: the first MAX_LISTED harmless members that are no part of the adapter.
    """

    def __init__(self) -> None:
        self.ignored: list[str] = []
        self._seen: set[PurePosixPath] = set()
        self._found: dict[str, PurePosixPath] = {}
        self._num_members = 0

    def add_folder(self, name: str) -> None:
        """Count a folder as a member, and check its name.

        Raises AdapterRejected: when the name is no plain path within the archive, or the members are too many.
        """
        self._count_member()
        _path(name)

    def add_file(self, name: str) -> str | None:
        """Record a file; return which of FILE_NAMES the member is, or None if the member is to be ignored.

        Raises AdapterRejected: when an archive may not hold such a member; the error has the reason.
        """
        self._count_member()
        path = _path(name)
        if not path.name:
            raise refusal(name, "has no name")
        if path in self._seen:
            raise refusal(name, "occurs twice")
        self._seen.add(path)
        if path.name in FILE_NAMES:
            self._add_member(path)
            return path.name
        _check_harmless(path)
        if len(self.ignored) < MAX_LISTED:
            self.ignored.append(str(path)[:200])
        return None

    def check_complete(self) -> None:
        """Check that both files were there, in one folder.

        Raises AdapterRejected: when they were not.
        """
        missing = [name for name in FILE_NAMES if name not in self._found]
        if missing:
            others = f"; there is {', '.join(ascii(name) for name in self.ignored[:5])}" if self.ignored else ""
            raise AdapterRejected([f"{name} is missing{others}" for name in missing])
        if len({path.parent for path in self._found.values()}) > 1:
            paths = " and ".join(repr(str(path)) for path in self._found.values())
            raise AdapterRejected([f"{paths} are not in one folder"])

    def _count_member(self) -> None:
        self._num_members += 1
        if self._num_members > MAX_MEMBERS:
            raise AdapterRejected([f"there are more than {MAX_MEMBERS} members"])

    def _add_member(self, path: PurePosixPath) -> None:
        if len(path.parts) > 2:
            raise refusal(str(path), "lies deeper than in one folder")
        if path.name in self._found:
            raise refusal(str(path), f"is a second {path.name}, beside {str(self._found[path.name])!r}")
        self._found[path.name] = path


def refusal(name: str, reason: str) -> AdapterRejected:
    """Return the error for a member, with its name and the reason why it is refused."""
    return AdapterRejected([f"member {name[:200]!a} {reason}"])


def _path(name: str) -> PurePosixPath:
    """Return a member's name as a relative path without detours.

    Raises AdapterRejected: when the name is another kind of path, is too long or holds characters that are not printed.
    """
    if len(name) > MAX_NAME_CHARS:
        raise refusal(name, f"has a name of more than {MAX_NAME_CHARS} characters")
    if any(unicodedata.category(char) in _UNPRINTED for char in name):
        raise refusal(name, "has a name with control or invisible characters")
    if "\\" in name:
        raise refusal(name, "has a backslash in its name")
    if name.startswith("/") or _DRIVE.match(name):
        raise refusal(name, "has an absolute name")
    if ".." in name.split("/"):
        raise refusal(name, "leads out of its folder ('..')")
    return PurePosixPath(name)


def _check_harmless(path: PurePosixPath) -> None:
    lower = path.name.lower()
    suffix = PurePosixPath(lower).suffix
    if suffix in _PICKLES:
        raise refusal(str(path), "is a pickle by its name, which can run code; only safetensors is taken: leave it out")
    if suffix in _ARCHIVES:
        raise refusal(str(path), "is an archive within the archive: leave it out")
    if unicodedata.normalize("NFKC", lower).strip() in FILE_NAMES:
        raise refusal(str(path), "is named almost like one of the adapter's files")
