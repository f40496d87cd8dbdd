"""Every setting of Lorikeet: one frozen struct, read once from the environment.

A name that nobody knows, or a value that does not fit, stops the start with one line that says which and why.
Knows nothing about what the settings do: it only types, bounds and derives them.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import re
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gateway.domain.adapters.sources import AllowedSources, WrongSource, parse_place
from gateway.domain.content.keys import BadContentKey, parse_keys

PREFIX = "LORIKEET_"
URL_VARIABLE = "LORIKEET_URL"
API_KEY_VARIABLE = "LORIKEET_API_KEY"
CLIENT_VARIABLES = frozenset({URL_VARIABLE, API_KEY_VARIABLE})
"""Whom `lorikeet chat` talks to; a server that meets them in its environment has no use for them."""

DEMO_MODEL_NAME = "smollm2-135m-instruct"
MAX_SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux (`sockaddr_un.sun_path`, less its final NUL)."""

MAX_PORT = 65535
MODEL_NAME_PATTERN = r"^[^:\s]+$"
ENGINE_ENDPOINT = re.compile(r"ipc://.+|tcp://(localhost|127(\.\d{1,3}){3}|\[::1\]):\d{1,5}")
ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?")

_LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"
_BYTE_FIELDS = frozenset(
    {
        "kv_cache_bytes",
        "adapter_device_bytes",
        "adapter_host_bytes",
        "adapter_cache_bytes",
        "max_body_bytes",
        "max_adapter_bytes",
        "journal_bytes",
    }
)
_PATH_FIELDS = frozenset({"data_dir", "adapter_folder"})  # Path is not one of msgspec's types
_SECRET_FIELDS = frozenset({"admin_key", "admin_password", "content_key", "database_url"})
_BYTE_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=1, le=2**50)]


class BadSetting(ValueError):
    """A variable of the environment is unknown or wrong; the message is one line that names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One field per variable, `LORIKEET_<FIELD>` (and `DATABASE_URL`); each field's description is its documentation.

    model_name, adapter_store and engine_endpoint are never empty once constructed: left out, they are derived.
    """

    host: Annotated[str, Meta(description="Address the gateway listens on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="Port the gateway listens on.")] = 8080
    metrics_listen: Annotated[
        str,
        Meta(
            description="Address and port of Prometheus metrics, which show what every tenant does: keep them from "
            "tenants (`off`: none). The gateways of one `serve` share the port."
        ),
    ] = "127.0.0.1:9464"
    data_dir: Annotated[Path, Meta(description="Folder that holds everything Lorikeet keeps.")] = Path(".lorikeet")
    model: Annotated[str, Meta(description="Base model: `demo`, a folder, a `.gguf` file, or a hub id.")] = "demo"
    model_name: Annotated[
        str, Meta(pattern=MODEL_NAME_PATTERN, description="Public id of the base model (unset: from LORIKEET_MODEL).")
    ] = ""
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Where the engine computes: `auto`, `cpu` or `cuda`.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Format of the weights: `auto`, `float32`, `bfloat16` or `float16`."),
    ] = "auto"
    kv_cache_bytes: Annotated[
        Bytes | None, Meta(description="Memory of the KV cache, e.g. `512MiB` (unset: chosen at start).")
    ] = None
    max_model_len: Annotated[Count, Meta(description="Longest sequence in tokens (0: the model's own).")] = 0
    max_num_seqs: Annotated[Positive, Meta(description="Sequences in one batch.")] = 64
    max_batched_tokens: Annotated[
        Count, Meta(description="Tokens computed in one step (0: 512 on a CPU, 2048 on a GPU).")
    ] = 0
    max_waiting: Annotated[
        Positive, Meta(description="Requests that may queue in the engine; one tenant fills at most half.")
    ] = 512
    num_threads: Annotated[
        Count,
        Meta(
            description="CPU threads of the engine (0: as many as `OMP_NUM_THREADS` says, or as there are processors)."
        ),
    ] = 0
    max_adapters: Annotated[Positive, Meta(description="Adapters on the device at once.")] = 32
    max_adapter_rank: Annotated[
        int, Meta(ge=1, le=256, description="Largest rank of an adapter; GPUs are faster with less.")
    ] = 256
    adapter_device_bytes: Annotated[
        Bytes | None, Meta(description="Memory of those, e.g. `2GiB` (unset: chosen at start).")
    ] = None
    adapter_host_bytes: Annotated[Bytes, Meta(description="Memory of adapters kept ready to return to the device.")] = (
        1 << 30
    )
    gpu_memory_fraction: Annotated[
        float, Meta(gt=0, le=1, description="Of a GPU's memory, what weights, steps, caches and adapters may take.")
    ] = 0.9
    num_draft_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=32,
            description="Tokens guessed ahead per step by speculative decoding (0: off); a GPU then waits for the host "
            "between steps.",
        ),
    ] = 0
    default_max_tokens: Annotated[Positive, Meta(description="Completion tokens when a request sets no bound.")] = 1024
    max_body_bytes: Annotated[Bytes, Meta(description="Largest request body, e.g. `4MiB`.")] = 4 << 20
    max_adapter_bytes: Annotated[Bytes, Meta(description="Largest adapter upload, e.g. `512MiB`.")] = 512 << 20
    adapter_store: Annotated[
        str,
        Meta(description="Keeps adapters: a folder or `s3://bucket/prefix` (unset: `adapters` in the data folder)."),
    ] = ""
    adapter_cache_bytes: Annotated[
        Bytes, Meta(description="What each machine keeps on its disk of adapters in a bucket.")
    ] = 16 << 30
    adapter_grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400 * 30,
            description="How long an adapter's content stays after nothing refers to it; requests that run may still "
            "need it.",
        ),
    ] = 3600.0
    adapter_sources: Annotated[
        str,
        Meta(
            description="Whence adapters may be fetched, e.g. `hf://my-org/, https://models.example.com/, "
            "s3://bucket/prefix` (unset: none)."
        ),
    ] = ""
    adapter_folder: Annotated[
        Path | None,
        Meta(description="Watched folder: `<tenant>/<adapter>/` with PEFT's files in it is added (unset: none)."),
    ] = None
    journal_bytes: Annotated[
        Bytes, Meta(description="Usage each gateway keeps while the database is away; then it refuses requests.")
    ] = 64 << 20
    trusted_proxies: Annotated[
        str, Meta(description="Networks whose X-Forwarded-For counts, e.g. `10.0.0.0/8, ::1` (unset: none).")
    ] = ""
    cors_origins: Annotated[
        str, Meta(description="Web pages that may call the API, e.g. `https://app.example.com` (unset: none).")
    ] = ""
    max_failed_keys: Annotated[
        Count, Meta(description="Bad keys and passwords per address and minute, in each gateway (0: no bound).")
    ] = 100
    max_connections_per_address: Annotated[
        Count, Meta(description="Open connections per address, in each gateway (0: no bound).")
    ] = 128
    unread_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="How long a client may leave a full buffer of its reply unread; then it is cut off and its "
            "work aborted.",
        ),
    ] = 60.0
    head_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a new connection may take until the headers of its first request are complete, and "
            "each later request from its first byte; then the connection is closed (408).",
        ),
    ] = 10.0
    body_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="How long nothing of a request's body may arrive before it is refused (408). Each KiB that "
            "does buys a second more, up to this.",
        ),
    ] = 60.0
    private_webhooks: Annotated[
        bool,
        Meta(
            description="Whether webhooks, object stores and sources of adapters may be at private addresses, such as "
            "the loopback."
        ),
    ] = False
    drain_seconds: Annotated[
        float, Meta(ge=0, le=86400, description="How long running requests may take to finish at shutdown.")
    ] = 30.0
    engine_endpoint: Annotated[
        str, Meta(description="ZeroMQ address of the engine (unset: a socket under the data folder).")
    ] = ""
    admin_key: Annotated[
        str | None, Meta(description="The operator's key (unset: read from `operator.key` in the data folder).")
    ] = None
    admin_password: Annotated[
        str | None,
        Meta(
            min_length=12,
            max_length=1024,
            description="First password of admin@localhost, which the first start makes (unset: a random one, in "
            "`admin-login.txt` in the data folder).",
        ),
    ] = None
    content_key: Annotated[
        str | None,
        Meta(
            description="Key that encrypts kept replies and stored completions, 32 bytes in base64, the same for all "
            "gateways; older ones behind it, after commas, still decrypt (unset: `content.key` in the data folder)."
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe line logged: `debug`, `info`, `warning` or `error`."),
    ] = "info"
    database_url: Annotated[str | None, Meta(description="PostgreSQL to use (unset: an embedded one).")] = None

    def __post_init__(self) -> None:
        # The data folder becomes absolute so that child processes agree on it whatever they run in.
        msgspec.structs.force_setattr(self, "data_dir", self.data_dir.expanduser().absolute())
        if self.adapter_folder is not None:
            msgspec.structs.force_setattr(self, "adapter_folder", self.adapter_folder.expanduser().absolute())
        if "://" not in self.adapter_store:
            folder = (
                Path(self.adapter_store).expanduser().absolute() if self.adapter_store else self.data_dir / "adapters"
            )
            msgspec.structs.force_setattr(self, "adapter_store", str(folder))
        if not self.model_name:
            msgspec.structs.force_setattr(self, "model_name", _model_name(self.model))
        if not self.engine_endpoint:
            msgspec.structs.force_setattr(self, "engine_endpoint", f"ipc://{self.run_dir / 'engine.sock'}")

    @property
    def base_url(self) -> str:
        """URL at which this machine reaches the gateway, without a path."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of metrics_listen; None where it is off. Raises ValueError, which `load_settings` turns into
        BadSetting."""
        if self.metrics_listen == "off":
            return None
        host, _, port = self.metrics_listen.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
            raise ValueError("Expected HOST:PORT, such as 127.0.0.1:9464, or off")
        return host, int(port)

    @property
    def trusted_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of trusted_proxies. Raises ValueError, which `load_settings` turns into BadSetting."""
        return tuple(ipaddress.ip_network(text) for text in _listed(self.trusted_proxies))

    @property
    def allowed_origins(self) -> list[str]:
        return _listed(self.cors_origins)

    @property
    def allowed_sources(self) -> AllowedSources:
        """Raises WrongSource, which `load_settings` turns into BadSetting."""
        return AllowedSources.parse(self.adapter_sources)

    @property
    def model_cache_dir(self) -> Path:
        """Prepared base models."""
        return self.data_dir / "models"

    @property
    def has_remote_store(self) -> bool:
        """Whether adapters are kept in a bucket."""
        return self.adapter_store.startswith("s3://")

    @property
    def adapter_cache_dir(self) -> Path:
        """What this machine keeps of adapters in a bucket."""
        return self.data_dir / "adapter-cache"

    @property
    def export_dir(self) -> Path:
        """Below which scheduled exports are put, a folder for each organization."""
        return self.data_dir / "exports"

    @property
    def journal_dir(self) -> Path:
        """Journals of the gateways on this machine."""
        return self.data_dir / "journal"

    @property
    def operator_key_path(self) -> Path:
        return self.data_dir / "operator.key"

    @property
    def admin_login_path(self) -> Path:
        """With what the first person signs in to the dashboard, as long as they have not changed it."""
        return self.data_dir / "admin-login.txt"

    @property
    def content_key_path(self) -> Path:
        """What kept content is encrypted with, where no setting says so."""
        return self.data_dir / "content.key"

    @property
    def demo_env_path(self) -> Path:
        return self.data_dir / "demo.env"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    @property
    def metrics_dir(self) -> Path:
        """Where the gateways of one `serve` count together."""
        return self.run_dir / "metrics"

    @property
    def run_dir(self) -> Path:
        """Folder of the Unix sockets: under the data folder, or under the temporary one where that path is too long."""
        folder = self.data_dir / "run"
        if len(str(folder / _LONGEST_SOCKET_NAME).encode()) <= MAX_SOCKET_PATH_BYTES:
            return folder
        identity = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"lorikeet-{identity}"


class SettingRow(msgspec.Struct, frozen=True):
    """One line of the documented table; default is as one would write it in the environment, "" where unset."""

    name: str
    default: str
    doc: str


def variable(field: str) -> str:
    """The environment variable of a field of `Settings`."""
    return "DATABASE_URL" if field == "database_url" else PREFIX + field.upper()


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read every setting; an empty value counts as unset. Raises BadSetting."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    fields = {variable(name): name for name in hints}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in fields and name not in CLIENT_VARIABLES:
            raise BadSetting(f"{name} is not a setting{_suggestion(name, list(fields))}")
    values = {
        field: _value(name, field, environ[name], hints[field]) for name, field in fields.items() if environ.get(name)
    }
    settings = Settings(**values)
    _check_model_name(settings)
    _check_engine_endpoint(settings.engine_endpoint)
    _check_metrics_listen(settings)
    _check_networks(settings)
    _check_origins(settings)
    _check_adapter_places(settings)
    _check_content_key(settings)
    if settings.database_url is not None:
        _check_database_url(settings.database_url)
    return settings


def settings_table() -> list[SettingRow]:
    """Every setting with its default and one line of documentation, in the order of the struct."""
    rows = []
    for field in msgspec.structs.fields(Settings):
        metas = typing.get_type_hints(Settings, include_extras=True)[field.name].__metadata__
        doc = next(meta.description for meta in metas if meta.description)
        rows.append(SettingRow(variable(field.name), _shown(field.name, field.default), doc))
    return rows


def _value(name: str, field: str, text: str, hint: Any) -> Any:
    try:
        raw: Any = _parse_bytes(text) if field in _BYTE_FIELDS else text.strip()
        return Path(raw) if field in _PATH_FIELDS else msgspec.convert(raw, hint, strict=False)
    except ValueError as error:  # msgspec.ValidationError is one
        choices = typing.get_args(typing.get_args(hint)[0]) if "enum" in str(error) else ()
        why = f"Expected one of {', '.join(choices)}" if choices else str(error).removesuffix(", got `str`")
        shown = "" if field in _SECRET_FIELDS else f"={text!r}"
        raise BadSetting(f"{name}{shown}: {why}") from None


def _check_model_name(settings: Settings) -> None:
    if re.fullmatch(MODEL_NAME_PATTERN, settings.model_name) is None:
        raise BadSetting(
            f"LORIKEET_MODEL={settings.model!r}: its name {settings.model_name!r} cannot be a model's id "
            "(no colon, no space, not empty); choose one with LORIKEET_MODEL_NAME"
        )


def _check_engine_endpoint(endpoint: str) -> None:
    if ENGINE_ENDPOINT.fullmatch(endpoint) is None:
        raise BadSetting(
            f"LORIKEET_ENGINE_ENDPOINT={endpoint!r}: Expected ipc://PATH, or tcp://HOST:PORT with localhost, 127.x.x.x "
            "or [::1]; only engines on this machine are supported until the transport is encrypted"
        )


def _check_metrics_listen(settings: Settings) -> None:
    try:
        _ = settings.metrics_address
    except ValueError as error:
        raise BadSetting(f"LORIKEET_METRICS_LISTEN={settings.metrics_listen!r}: {error}") from None


def _check_networks(settings: Settings) -> None:
    try:
        _ = settings.trusted_networks
    except ValueError as error:
        raise BadSetting(f"LORIKEET_TRUSTED_PROXIES={settings.trusted_proxies!r}: {error}") from None


def _check_origins(settings: Settings) -> None:
    for origin in settings.allowed_origins:
        if ORIGIN.fullmatch(origin) is None:
            raise BadSetting(
                f"LORIKEET_CORS_ORIGINS={settings.cors_origins!r}: Expected origins such as https://app.example.com, "
                f"without a path and without wildcards, separated by commas; {origin!r} is none"
            )


def _check_adapter_places(settings: Settings) -> None:
    for place in filter(None, map(str.strip, settings.adapter_sources.split(","))):
        try:
            parse_place(place)
        except WrongSource as error:
            raise BadSetting(f"LORIKEET_ADAPTER_SOURCES: {place!r} is no source: {error}") from None
    if "://" in settings.adapter_store:
        try:
            is_bucket = parse_place(settings.adapter_store).scheme == "s3"
        except WrongSource:
            is_bucket = False
        if not is_bucket:
            raise BadSetting(
                f"LORIKEET_ADAPTER_STORE={settings.adapter_store!r}: Expected a folder, or s3://BUCKET/PREFIX"
            )


def _check_content_key(settings: Settings) -> None:
    try:
        if settings.content_key is not None:
            parse_keys(settings.content_key)
    except BadContentKey as error:
        raise BadSetting(f"LORIKEET_CONTENT_KEY: {error}") from None


def _check_database_url(url: str) -> None:
    """The form only, and never the text: it holds a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        well_formed = parts.scheme in ("postgres", "postgresql") and all(urlsplit(f"//{it}").port != 0 for it in hosts)
    except ValueError:  # a port that is no number, or brackets that do not close
        well_formed = False
    if not well_formed:
        raise BadSetting(
            "DATABASE_URL: Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters "
            "percent-encoded"
        )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    unit = _BYTE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError("Expected a number of bytes, plain or with KiB, MiB or GiB")
    return int(match[1]) * unit


def _suggestion(name: str, known: list[str]) -> str:
    bare = {other.removeprefix(PREFIX): other for other in known}
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.5)
    return f"; did you mean {bare[nearest[0]]}?" if nearest else "; `lorikeet settings` lists them all"


def _shown(field: str, default: Any) -> str:
    if default is None:
        return ""
    if field in _BYTE_FIELDS:
        return f"{default >> 20}MiB"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _model_name(model: str) -> str:
    return DEMO_MODEL_NAME if model == "demo" else Path(model).name.lower()
