"""Sends an adapter from this machine to the server: in one request, or in pieces that resume after a broken connection.

Knows nothing of the files' contents, but that PEFT writes two of them.
"""

from __future__ import annotations

import hashlib
import shlex
import tarfile
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from adapters.errors import AdapterRejected
from adapters.safe_file import open_regular
from adapters.store import FILE_NAMES
from gateway.cli.client import RequestRefused
from gateway.cli.errors import CommandFailed, ServerUnreachable
from gateway.cli.path_parts import id_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.cli.client import AdminClient
    from gateway.cli.progress import Progress

MAX_WHOLE_BYTES = 16 << 20
"""The most bytes that are sent at once; larger files go in pieces."""

PIECE_BYTES = 8 << 20
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to resume after a connection broke, until an attempt sends more bytes."""

PAUSED = "adapter_uploads_paused"
MAX_PAUSED_S = 600.0
"""The most seconds to wait, in all, for the end of a tenant's pauses for adapters: twice the longest pause."""

TRANSIENT = frozenset({"wrong_offset", "import_busy"})
"""Error codes of a piece after which the next attempt may succeed: the server has not noticed the broken connection."""


def retry_while_paused(ask: Callable[[], dict[str, Any]], progress: Progress) -> dict[str, Any]:
    """Call `ask`, again after each wait while the tenant's adapters are paused, and return the answer of `ask`.

    `progress` shows each wait.

    Raises the errors of `ask`: when they do not report a pause, or the waits would exceed MAX_PAUSED_S.
    """
    waited_s = 0.0
    while True:
        try:
            return ask()
        except RequestRefused as error:
            wait_s = error.retry_after_s or 0.0
            waited_s += wait_s
            if error.code != PAUSED or not wait_s or waited_s > MAX_PAUSED_S:
                raise
            progress.note(f"waiting: {error}")
        time.sleep(wait_s)


class Upload:
    """An upload of one adapter, whole or in pieces."""

    def __init__(
        self,
        client: AdminClient,
        progress: Progress,
        *,
        tenant: str,
        project: str,
        name: str,
        promote: bool,
        base: str | None = None,
    ) -> None:
        """Prepare an upload of the adapter with this name.

        tenant: the name of the project. project: the path of the project in the admin API. base: None is the default.
        promote: True: the version becomes the current one once it is ready.
        """
        self._client = client
        self._tenant = tenant
        self._project = project
        self._progress = progress
        self._name = name
        self._promote = promote
        self._base = {} if base is None else {"base": base}
        self._reached = 0  # bytes that the server is known to have

    def send(self, path: Path, import_id: str | None) -> dict[str, Any]:
        """Send a folder or an archive, and return the server's answer.

        import_id: the upload to resume; None: begin a new one.

        Raises CommandFailed: when the path does not exist or the server refuses; the error has the server's words.
        """
        with ExitStack() as stack:
            if path.is_dir():
                files = {name: _open(path / name, stack) for name in FILE_NAMES}
            elif path.exists():
                files = {"archive": _open(path, stack)}
            else:
                raise CommandFailed(f"{path} does not exist")
            if import_id is None and sum(map(_size, files.values())) <= MAX_WHOLE_BYTES:
                form = {"name": self._name, "promote": str(self._promote).lower(), **self._base}
                return retry_while_paused(lambda: self._send_whole(form, files), self._progress)
            archive = files.get("archive") or _pack(files, stack)
            sha256 = _sha256(archive)
            if import_id is None:
                import_id = self._begin(_size(archive), sha256)
            else:
                known = self._client.get(f"{self._project}/adapter_imports/{id_part(import_id)}")
                self._check(path, _size(archive), sha256, known)
            return self._send_in_pieces(path, archive, import_id)

    def _send_whole(self, form: dict[str, str], files: dict[str, BinaryIO]) -> dict[str, Any]:
        for file in files.values():
            file.seek(0)
        return self._client.post(f"{self._project}/adapters", data=form, files=files)

    def _begin(self, size_bytes: int, sha256: str) -> str:
        wanted = {"name": self._name, "size_bytes": size_bytes, "promote": self._promote, "sha256": sha256}
        wanted |= self._base
        path = f"{self._project}/adapter_imports"
        return str(retry_while_paused(lambda: self._client.post(path, json=wanted), self._progress)["id"])

    def _send_in_pieces(self, path: Path, archive: BinaryIO, import_id: str) -> dict[str, Any]:
        imported = f"{self._project}/adapter_imports/{id_part(import_id)}"
        num_failed = 0
        try:
            while True:
                before = self._reached
                try:
                    return retry_while_paused(lambda: self._resume(imported, archive), self._progress)
                except (ServerUnreachable, RequestRefused) as error:
                    if isinstance(error, RequestRefused) and error.code not in TRANSIENT:
                        raise
                    # An upload that makes progress may break often.
                    num_failed = num_failed + 1 if self._reached == before else 1
                    if num_failed > len(PAUSES_S):
                        self._give_up(str(error), path, import_id)
                time.sleep(PAUSES_S[num_failed - 1])
        except KeyboardInterrupt:
            self._give_up("interrupted", path, import_id)

    def _check(self, path: Path, size_bytes: int, sha256: str, known: dict[str, Any]) -> None:
        """Check that the upload to resume is of this adapter, with these bytes.

        Raises CommandFailed: when the upload to resume is of another adapter or content, or has other flags.
        """
        if known["name"] != self._name:
            raise CommandFailed(f"{known['id']} is an upload of '{known['name']}', not of '{self._name}'")
        if known["promote"] != self._promote:
            begun, wanted = (
                ("without", "start a new upload to use the flag")
                if known["promote"]
                else ("with", "pass --no-promote again")
            )
            raise CommandFailed(f"{known['id']} was begun {begun} --no-promote: {wanted}")
        if known["size_bytes"] != size_bytes:
            raise CommandFailed(
                f"{known['id']} is an upload of {known['size_bytes']} bytes, and {path} has {size_bytes}: resume "
                "with the same files, or start a new upload"
            )
        if known["sha256"] not in (None, sha256):
            raise CommandFailed(f"{path} has changed since {known['id']} began: start a new upload")

    def _resume(self, imported: str, archive: BinaryIO) -> dict[str, Any]:
        """Send the rest of an archive, from the offset that the server has, and complete the import.

        Raises ServerUnreachable: when the server does not answer.
        Raises RequestRefused: when the server refuses the import or a piece.
        """
        known = self._client.get(imported)
        while known["state"] == "uploaded":  # an answer was lost, and the server is working on the import
            time.sleep(PAUSES_S[0])
            known = self._client.get(imported)
        offset, size_bytes = known["received_bytes"], known["size_bytes"]
        while known["state"] == "receiving" and offset < size_bytes:
            archive.seek(offset)
            self._progress.show(offset, size_bytes)
            reply = self._client.patch(imported, archive.read(PIECE_BYTES), upload_offset=str(offset))
            offset = self._reached = reply["received_bytes"]
        return self._client.post(f"{imported}/complete", json={})

    def _give_up(self, why: str, path: Path, import_id: str) -> NoReturn:
        self._progress.done()
        words = ["lorikeet", "adapter", "add", str(path), "--tenant", self._tenant, "--name", self._name]
        words += [] if self._promote else ["--no-promote"]
        raise CommandFailed(f"{why}; continue with `{shlex.join([*words, '--resume', import_id])}`") from None


def _open(path: Path, stack: ExitStack) -> BinaryIO:
    """Open a file for reading.

    Raises CommandFailed: for a file that cannot be read.
    """
    try:
        return stack.enter_context(open_regular(path))
    except AdapterRejected as error:
        raise CommandFailed(f"{path.parent}: {error.reasons[0]}") from None


def _size(file: BinaryIO) -> int:
    position = file.tell()
    size_bytes = file.seek(0, 2)
    file.seek(position)
    return size_bytes


def _sha256(file: BinaryIO) -> str:
    hashed = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        hashed.update(piece)
    return hashed.hexdigest()


def _pack(files: dict[str, BinaryIO], stack: ExitStack) -> BinaryIO:
    """Pack the files into an archive. The same files give the same bytes, so that an upload can go on another day."""
    packed = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, file in files.items():
            member = tarfile.TarInfo(name)
            member.size = _size(file)
            archive.addfile(member, file)
    packed.seek(0)
    return packed
