"""Settings of what tenants may store, of where it lies and how long, and of the places that adapters come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from engine.config import Bytes
from gateway.domain.adapters.sources import AllowedSources
from gateway.settings.model import ModelSettings


class StorageSettings(ModelSettings, frozen=True, kw_only=True):
    """The settings of `ModelSettings`, and those of stored content, files, adapters and journals."""

    max_body_bytes: Annotated[Bytes, Meta(description="Largest body of a request, e.g. `4MiB`.")] = 4 << 20
    max_adapter_bytes: Annotated[Bytes, Meta(description="Largest upload of an adapter, e.g. `512MiB`.")] = 512 << 20
    file_store: Annotated[
        str,
        Meta(
            pattern=r"^([^:]*|s3://.+)$",
            description="Folder, or `s3://bucket/prefix`, that holds the content of tenants' files, encrypted. "
            "Gateways on several machines need one that all of them reach (unset: `files` in the data folder).",
        ),
    ] = ""
    max_file_bytes: Annotated[
        Bytes,
        Meta(description="Largest file that a request may upload, e.g. `512MiB`; an upload in parts may have 8 GiB."),
    ] = 512 << 20
    max_content_bytes: Annotated[
        Bytes,
        Meta(
            description="Bytes of encrypted replies, stored completions, files and logged content that one project may "
            "have, e.g. `1GiB` (0: any number). Beyond that nothing more is stored for the project."
        ),
    ] = 1 << 30
    disk_reserve_bytes: Annotated[
        Bytes,
        Meta(
            description="Bytes that stay free on the disk of the data folder, e.g. `1GiB` (0: none). Below that "
            "gateways take no uploads of adapters and store neither files nor other content."
        ),
    ] = 1 << 30
    adapter_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400 * 30,
            description="Seconds for which the files of an adapter stay after the last version that uses them is gone, "
            "because running requests may still need the files.",
        ),
    ] = 3600.0
    adapter_sources: Annotated[
        str,
        Meta(
            description="Sources from which adapters may be downloaded, e.g. `hf://my-org/, "
            "https://models.example.com/, s3://bucket/prefix` (unset: none)."
        ),
    ] = ""
    adapter_folder: Annotated[
        Path | None,
        Meta(
            description="Watched folder: every folder `<tenant>/<adapter>/` with the files of a PEFT adapter is added "
            "to the tenant's adapters (unset: none)."
        ),
    ] = None
    journal_bytes: Annotated[
        Bytes,
        Meta(
            description="Usage records that each gateway stores on disk while the database is away, e.g. `64MiB`; when "
            "full, the gateway refuses requests."
        ),
    ] = 64 << 20
    journal_spent_bytes: Annotated[
        Bytes,
        Meta(
            description="Usage records that stay on disk after the ledger has them, in each gateway's journal, e.g. "
            "`1GiB`. When the database is restored to an earlier moment, `lorikeet journal replay` bills them again "
            "(0: none stay)."
        ),
    ] = 64 << 20

    @property
    def allowed_sources(self) -> AllowedSources:
        """Return the sources from which adapters may be downloaded.

        Raises WrongSource: when a text is no source; `load_settings` turns the error into BadSetting.
        """
        return AllowedSources.parse(self.adapter_sources)
