"""The setting of the data folder, and the places of everything below it."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gateway.settings.listening import ListeningSettings

MAX_SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux (`sockaddr_un.sun_path`, less its final NUL)."""

_LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"


class PlaceSettings(ListeningSettings, frozen=True, kw_only=True):
    """The settings of `ListeningSettings`, and the data folder with the paths below it."""

    data_dir: Annotated[Path, Meta(description="Folder for everything that Lorikeet stores.")] = Path(".lorikeet")

    @property
    def model_cache_dir(self) -> Path:
        """The folder of prepared base models."""
        return self.data_dir / "models"

    @property
    def export_dir(self) -> Path:
        """The folder of scheduled exports, with a subfolder for each organization."""
        return self.data_dir / "exports"

    @property
    def journal_dir(self) -> Path:
        """The folder of the journals of the gateways on this machine."""
        return self.data_dir / "journal"

    @property
    def operator_key_path(self) -> Path:
        """The file of the operator's key."""
        return self.data_dir / "operator.key"

    @property
    def admin_login_path(self) -> Path:
        """The file with the first person's login for the dashboard, until the password is changed."""
        return self.data_dir / "admin-login.txt"

    @property
    def content_key_path(self) -> Path:
        """The file of the key that encrypts stored content, where no setting has one."""
        return self.data_dir / "content.key"

    @property
    def demo_env_path(self) -> Path:
        """The file of the demo's address and key."""
        return self.data_dir / "demo.env"

    @property
    def log_dir(self) -> Path:
        """The folder of the processes' logs."""
        return self.data_dir / "log"

    @property
    def home_dir(self) -> Path:
        """The home of the user that root starts agent, gateways and engines as."""
        return self.data_dir / "home"

    @property
    def metrics_dir(self) -> Path:
        """The folder in which the gateway processes of one `serve` share their counts."""
        return self.run_dir / "metrics"

    @property
    def run_dir(self) -> Path:
        """The folder of Unix sockets: in the data folder, or in the temporary folder if that path is too long."""
        folder = self.data_dir / "run"
        if len(str(folder / _LONGEST_SOCKET_NAME).encode()) <= MAX_SOCKET_PATH_BYTES:
            return folder
        identity = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"lorikeet-{identity}"
