"""Opens the adapter store that a setting names: a folder, or a bucket by its s3:// URL."""

from __future__ import annotations

from pathlib import Path

from adapters.store import AdapterStore


def open_store(place: str | Path, cache_dir: Path, cache_bytes: int) -> AdapterStore:
    """Open the store in a folder, or in the bucket of an s3:// URL.

    cache_dir: the folder that keeps cache_bytes of what is in a bucket.

    Raises StoreFailure: for any other URL, or where the bucket's settings are wrong.
    """
    if "://" not in str(place):
        return AdapterStore(Path(place))
    from adapters.remote_store import RemoteStore, open_bucket  # a store in a folder needs no client for buckets

    return RemoteStore(open_bucket(str(place)), cache_dir, cache_bytes)
