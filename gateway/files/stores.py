"""The choice of the file store by the form of its place. Knows nothing about how either store works."""

from __future__ import annotations

from pathlib import Path

from gateway.files.pieces import FolderPieces, Pieces


def open_pieces(place: str) -> Pieces:
    """Return the file store in a folder, or in the bucket of an s3:// URL.

    Raises StoreFailure: for any other URL, or if the bucket's settings are wrong.
    """
    if "://" not in place:
        return FolderPieces(Path(place))
    from adapters.remote_store import open_bucket  # a store in a folder needs no client for buckets
    from gateway.files.bucket import BucketPieces

    return BucketPieces(open_bucket(place))
