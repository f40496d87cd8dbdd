"""The struct of all settings: those of each subject, secrets, and what follows from them where they are left out.

A struct has one parent at most, so each subject's settings have those of the subject before as their parent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.config import EngineConfig
from gateway.settings.hosts import HostSettings
from gateway.settings.model import model_name_of


class Settings(HostSettings, frozen=True, kw_only=True):
    """One field per variable, `LORIKEET_<FIELD>` (and `DATABASE_URL`); each field's description is its documentation.

    engine holds the settings of the engine, with variables of their own; its model_dir is empty until the model is
    prepared. model_name, engine.adapter_store and engine.endpoint are never empty once constructed: left out, they are
    derived.
    """

    admin_key: Annotated[
        str | None, Meta(description="Admin key of the operator (unset: read from `operator.key` in the data folder).")
    ] = None
    admin_password: Annotated[
        Annotated[str, Meta(min_length=12, max_length=1024)] | None,
        Meta(
            description="First password of the user admin@localhost, whom the first start creates (unset: a random "
            "password, written to `admin-login.txt` in the data folder).",
        ),
    ] = None
    content_key: Annotated[
        str | None,
        Meta(
            description="Key that encrypts stored replies, completions, logged content and secrets: 32 bytes in "
            "base64, the same for all gateways. Older keys may follow after commas and only decrypt: give all gateways "
            "a new one behind the old one before you put it in front (unset: `content.key` in the data folder)."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest severity of logged lines: `debug`, `info`, `warning` or `error`."),
    ] = "info"
    database_url: Annotated[
        str | None, Meta(description="URL of the PostgreSQL database (unset: an embedded PostgreSQL).")
    ] = None
    database_owner_url: Annotated[
        str | None,
        Meta(
            description="URL of the same database for the role that owns its tables, which `migrate`, `backup`, "
            "`restore` and the start of `serve` use; `DATABASE_URL` then names a role of gateways, which cannot change "
            "the audit log, the ledger or prices (unset: `DATABASE_URL` is for both)."
        ),
    ] = None

    def __post_init__(self) -> None:
        # The data folder becomes absolute so that child processes agree on it whatever they run in.
        msgspec.structs.force_setattr(self, "data_dir", self.data_dir.expanduser().absolute())
        if self.adapter_folder is not None:
            msgspec.structs.force_setattr(self, "adapter_folder", self.adapter_folder.expanduser().absolute())
        if "://" not in self.file_store:
            store = Path(self.file_store).expanduser().absolute() if self.file_store else self.data_dir / "files"
            msgspec.structs.force_setattr(self, "file_store", str(store))
        if not self.model_name:
            msgspec.structs.force_setattr(self, "model_name", model_name_of(self.model))
        msgspec.structs.force_setattr(self, "engine", self._with_places(self.engine))

    def _with_places(self, engine: EngineConfig) -> EngineConfig:
        """Return the engine's settings with all places filled in and absolute."""
        store = engine.adapter_store
        if "://" not in store:
            store = str(Path(store).expanduser().absolute() if store else self.data_dir / "adapters")
        return msgspec.structs.replace(
            engine,
            adapter_store=store,
            adapter_cache_dir=str(self.data_dir / "adapter-cache"),
            endpoint=engine.endpoint or f"ipc://{self.run_dir / 'engine.sock'}",
        )
