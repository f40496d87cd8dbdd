"""The file store in a bucket of any store that speaks S3: a piece is one object, `<project>/<part>/<number>`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from adapters.errors import StoreFailure
from gateway.files.pieces import check_name


class BucketPieces:
    """The file store over a bucket: one object for each piece of a part."""

    def __init__(self, bucket: ObjectStore) -> None:
        self._bucket = bucket

    def write(self, project_id: str, part_id: str, number: int, data: bytes) -> None:
        """Store a piece of a part as an object.

        number: the number of the piece, from 0 on.
        """
        with _failures("written"):
            obstore.put(self._bucket, f"{_prefix(project_id, part_id)}{number}", data)

    def read(self, project_id: str, part_id: str, number: int) -> bytes | None:
        """Return a piece of a part; None where there is none.

        number: the number of the piece, from 0 on.
        """
        with _failures("read"):
            try:
                return bytes(obstore.get(self._bucket, f"{_prefix(project_id, part_id)}{number}").bytes())
            except FileNotFoundError:
                return None

    def remove(self, project_id: str, part_id: str) -> None:
        """Delete all pieces of a part."""
        with _failures("changed"):
            for number in self.numbers(project_id, part_id):
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._bucket, f"{_prefix(project_id, part_id)}{number}")

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the project and the id of every part."""
        with _failures("listed"):
            paths = [each["path"].split("/") for some in obstore.list(self._bucket) for each in some]
            found = {(path[0], path[1]) for path in paths if len(path) == 3}
        yield from sorted((project_id, part_id) for project_id, part_id in found)

    def numbers(self, project_id: str, part_id: str) -> list[int]:
        """Return the numbers of a part's pieces in ascending order."""
        with _failures("listed"):
            listed = obstore.list(self._bucket, _prefix(project_id, part_id))
            names = [each["path"].rpartition("/")[2] for some in listed for each in some]
        return sorted(int(name) for name in names if name.isdecimal())


def _prefix(project_id: str, part_id: str) -> str:
    return f"{check_name(project_id)}/{check_name(part_id)}/"


@contextlib.contextmanager
def _failures(doing: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreFailure(f"the file store could not be {doing}: {' '.join(str(error).split())[:300]}") from None
