"""Every setting of Lorikeet: one frozen struct, read once from the environment.

An unknown name, or a value that does not fit, stops the start with one line that names it and the reason. Knows nothing
about the settings' effects: it only types, bounds and derives them.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from engine.config import Bytes, Count, EngineConfig, Positive
from engine.config.endpoint import BadEndpoint, check_endpoint
from engine.config.text import Field, fields_of
from gateway.domain.adapters.sources import AllowedSources, WrongSource, parse_place
from gateway.domain.content.keys import BadContentKey, parse_keys
from gateway.domain.tracing.sampler import SamplerName
from gateway.settings.secret_files import BadSecretFile, with_secrets

PREFIX = "LORIKEET_"
URL_VARIABLE = "LORIKEET_URL"
API_KEY_VARIABLE = "LORIKEET_API_KEY"
CLIENT_VARIABLES = frozenset({URL_VARIABLE, API_KEY_VARIABLE})
"""The variables that tell `lorikeet chat` which server to call; a server that meets them in its environment ignores
them."""

DEMO_MODEL_NAME = "smollm2-135m-instruct"
MAX_SOCKET_PATH_BYTES = 107
"""The longest path of a Unix socket on Linux (`sockaddr_un.sun_path`, less its final NUL)."""

MAX_PORT = 65535
MODEL_NAME_PATTERN = r"^[^:\s]+$"
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?")

_LONGEST_SOCKET_NAME = ".s.PGSQL.5432.lock"
_PATH_FIELDS = frozenset({"data_dir", "adapter_folder"})  # Path is not one of msgspec's types
_SECRET_FIELDS = frozenset(
    {"admin_key", "admin_password", "content_key", "database_owner_url", "database_url", "traces_headers"}
)
ENGINE_DEFAULTS = EngineConfig(model_dir="", endpoint="", adapter_store="")
"""The engine's settings where no variable is set, before its places are derived from the data folder."""

_OF_THE_ENGINE = {"endpoint": "LORIKEET_ENGINE_ENDPOINT"}
"""Variables of the engine's fields whose name is not LORIKEET_<FIELD>."""

_NO_VARIABLE = frozenset({"model_dir", "adapter_cache_dir"})
"""Fields of the engine that follow from LORIKEET_MODEL and LORIKEET_DATA_DIR."""

_WHERE_UNSET = {
    "adapter_store": "`adapters` in the data folder",
    "endpoint": "a socket under the data folder; pools have theirs",
}
"""Fields that the engine must be given, and the words for their derived values where a variable is unset."""


class BadSetting(ValueError):
    """A variable of the environment is unknown or wrong; the message is one line that names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One field per variable, `LORIKEET_<FIELD>` (and `DATABASE_URL`); each field's description is its documentation.

    engine holds the settings of the engine, with variables of their own; its model_dir is empty until the model is
    prepared. model_name, engine.adapter_store and engine.endpoint are never empty once constructed: left out, they are
    derived.
    """

    host: Annotated[str, Meta(description="Address on which the gateway listens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="Port on which the gateway listens.")] = 8080
    public_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s/]+/?)?$",
            description="URL at which clients reach the gateways, e.g. `https://llm.example.com`, where a proxy with "
            "TLS stands in front. An `https` URL allows LORIKEET_HOST to be an address that other machines can reach. "
            "Passkeys belong to its host name: another name makes all of them useless.",
        ),
    ] = ""
    plain_http: Annotated[
        bool,
        Meta(
            description="Permission to speak plain HTTP at an address that other machines can reach: keys, passwords "
            "and content then travel in the clear."
        ),
    ] = False
    metrics_listen: Annotated[
        str,
        Meta(
            description="Address and port of the Prometheus metrics at `/metrics` (`off`: no metrics). The metrics "
            "show what every tenant does, so tenants should not reach this address. The gateways of one `serve` share "
            "the port."
        ),
    ] = "127.0.0.1:9464"
    traces_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s@]+)?$",
            description="URL of the collector that gets OpenTelemetry traces by OTLP over HTTP, e.g. "
            "`http://127.0.0.1:4318/v1/traces` (unset: no traces).",
        ),
    ] = ""
    traces_headers: Annotated[
        str | None,
        Meta(
            description="Headers of each message to the collector, e.g. `authorization=Bearer%20KEY`, separated by "
            "commas, values percent-encoded (unset: none)."
        ),
    ] = None
    traces_sampler: Annotated[
        SamplerName,
        Meta(
            description="Choice of the requests that are traced: `always_on`, `always_off`, or `traceidratio` for the "
            "share LORIKEET_TRACES_RATIO of them. With `parentbased_` in front, a request that brings a trace is "
            "traced if its caller is, and the choice is for all others."
        ),
    ] = "parentbased_always_on"
    traces_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of traces that the samplers with `traceidratio` choose, from 0 to 1."),
    ] = 1.0
    data_dir: Annotated[Path, Meta(description="Folder for everything that Lorikeet stores.")] = Path(".lorikeet")
    model: Annotated[
        str,
        Meta(description="Base model: `demo`, a folder, a `.gguf` file, or a repository id of the Hugging Face hub."),
    ] = "demo"
    model_name: Annotated[
        str,
        Meta(
            pattern=MODEL_NAME_PATTERN,
            description="Name by which requests ask for the base model (unset: derived from LORIKEET_MODEL).",
        ),
    ] = ""
    engine: EngineConfig = ENGINE_DEFAULTS
    default_max_tokens: Annotated[
        Positive, Meta(description="Largest completion, in tokens, of a request that sets no limit of its own.")
    ] = 1024
    max_shadows: Annotated[
        Count,
        Meta(
            description="Copies of requests for shadow arms of experiments that each gateway runs at once (0: none "
            "runs). More wait for some seconds, and are dropped beyond that."
        ),
    ] = 4
    reply_details: Annotated[
        bool,
        Meta(
            description="Permission for headers of replies that name the pool that answers and, of whole replies, "
            "the cost (`x-lorikeet-pool`, `x-lorikeet-cost-nanos`)."
        ),
    ] = False
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
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Networks of reverse proxies whose header X-Forwarded-For is trusted, e.g. `10.0.0.0/8, ::1` "
            "(unset: none)."
        ),
    ] = ""
    cors_origins: Annotated[
        str,
        Meta(
            description="Origins of web pages that may call the API (CORS), e.g. `https://app.example.com` (unset: "
            "none)."
        ),
    ] = ""
    max_failed_keys: Annotated[
        Count,
        Meta(
            description="Wrong keys and passwords that one address may send to each gateway in a minute before the "
            "gateway refuses the address for a while (0: no limit)."
        ),
    ] = 100
    login_idle_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=60 * 24,
            description="Minutes after which a login of a person that is not used ends (0: never; logins end 12 hours "
            "after their start in any case). A page of the dashboard that is open uses its login.",
        ),
    ] = 60.0
    require_totp: Annotated[
        Literal["nobody", "owners", "everybody"],
        Meta(
            description="People who need a second factor: `nobody`, `owners` of the organization, or `everybody`. "
            "Such a person logs in with a passkey, or with a password and an authenticator's code; with a password "
            "alone they can do nothing but set one of these up."
        ),
    ] = "nobody"
    max_connections_per_address: Annotated[
        Count, Meta(description="Connections that one address may have open to each gateway (0: no limit per address).")
    ] = 128
    unread_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds for which a client may leave a reply unread; then the connection is closed and the "
            "request is aborted.",
        ),
    ] = 60.0
    head_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds that the headers of a request may take, counted from the opening of the connection "
            "for its first request and from the first byte for later requests; then the connection is closed (408).",
        ),
    ] = 10.0
    body_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds for which the body of a request may make no progress before the request is refused "
            "(408). Each KiB that arrives allows one second more, up to this number.",
        ),
    ] = 60.0
    private_webhooks: Annotated[
        bool,
        Meta(
            description="Permission for webhooks, object stores and sources of adapters at private addresses, such as "
            "127.0.0.1."
        ),
    ] = False
    drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds that running requests get to finish before their gateway is stopped.",
        ),
    ] = 30.0
    lame_duck_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds for which a gateway that is told to stop still takes requests, before the drain: "
            "`/health/ready` answers 503 and replies end their connections, so that a balancer in front sends requests "
            "elsewhere. Some more than the balancer takes to notice; 0 without a balancer.",
        ),
    ] = 0.0
    link_address: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]*$",
            description="Address or name by which gateways on other machines reach the engines of this host, e.g. "
            "`10.0.0.5`: what they say travels encrypted, and only between hosts that joined (unset: engines serve the "
            "gateways of this machine alone).",
        ),
    ] = ""
    link_ports: Annotated[
        str,
        Meta(
            pattern=r"^\d{1,5}-\d{1,5}$",
            description="First and last TCP port that engines listen on where LORIKEET_LINK_ADDRESS is set, or "
            "LORIKEET_PLACEMENT is not `local`.",
        ),
    ] = "7400-7499"
    placement: Annotated[
        Literal["local", "ray"],
        Meta(
            description="Launcher of engines: `local` starts engines on the agent's own host, `ray` on the nodes of a "
            "Ray cluster, of which the agent's host has to be one."
        ),
    ] = "local"
    ray_address: Annotated[
        str,
        Meta(
            description="Address of the Ray cluster with LORIKEET_PLACEMENT=ray, e.g. `10.0.0.5:6379` (`auto`: the "
            "cluster of the node that runs on the agent's host)."
        ),
    ] = "auto"
    llama_server: Annotated[
        str,
        Meta(
            description="Program of llama.cpp's server that the agent starts for pools of `llamacpp` without a URL "
            "(unset: `llama-server` on the PATH, else the Python package `xllamacpp`)."
        ),
    ] = ""
    vllm: Annotated[
        str,
        Meta(
            description="Program of vLLM that the agent starts for pools of `vllm` without a URL (unset: `vllm` on the "
            "PATH)."
        ),
    ] = ""
    cold_start_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds that a request waits for the first replica of a pool that starts one when requests "
            "come. Then it gets 503 with the time after which to try again.",
        ),
    ] = 60.0
    replica_drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds that running requests get to finish on a replica that is drained or replaced, while "
            "other replicas serve.",
        ),
    ] = 900.0
    replica_start_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds within which the engine of a replica must answer after its start. An engine that does "
            "not is ended, and the replica fails.",
        ),
    ] = 1800.0
    unattended_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=60 * 24 * 365,
            description="Minutes after which an engine of a pool ends by itself while neither an agent nor a gateway "
            "is connected to it (0: never).",
        ),
    ] = 10.0
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
        msgspec.structs.force_setattr(self, "engine", self._placed(self.engine))

    def _placed(self, engine: EngineConfig) -> EngineConfig:
        """Return the engine's settings with every place that was left out, or is relative, put in or made absolute."""
        store = engine.adapter_store
        if "://" not in store:
            store = str(Path(store).expanduser().absolute() if store else self.data_dir / "adapters")
        return msgspec.structs.replace(
            engine,
            adapter_store=store,
            adapter_cache_dir=str(self.data_dir / "adapter-cache"),
            endpoint=engine.endpoint or f"ipc://{self.run_dir / 'engine.sock'}",
        )

    @property
    def base_url(self) -> str:
        """URL at which this machine reaches the gateway, without a path."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def has_link(self) -> bool:
        """Tell whether this host's engines are on TCP, for gateways of other machines."""
        return bool(self.link_address) or self.placement != "local"

    @property
    def engine_ports(self) -> range:
        """The ports of link_ports. Raises ValueError, which `load_settings` turns into BadSetting."""
        first, last = map(int, self.link_ports.split("-"))
        if not 0 < first <= last <= MAX_PORT:
            raise ValueError(f"Expected the first and the last of some ports between 1 and {MAX_PORT}, as 7400-7499")
        return range(first, last + 1)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of metrics_listen; None where it is off.

        Raises ValueError, which `load_settings` turns into BadSetting.
        """
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
        """The origins whose pages may call the API."""
        return _listed(self.cors_origins)

    @property
    def allowed_sources(self) -> AllowedSources:
        """Return the sources from which adapters may be downloaded.

        Raises WrongSource, which `load_settings` turns into BadSetting.
        """
        return AllowedSources.parse(self.adapter_sources)

    @property
    def collector_headers(self) -> dict[str, str]:
        """Return the headers of traces_headers. Raises ValueError, which `load_settings` turns into BadSetting."""
        headers = {}
        for each in _listed(self.traces_headers or ""):
            name, equals, value = each.partition("=")
            value = unquote(value.strip())
            if not equals or HEADER_NAME.fullmatch(name.strip()) is None or HEADER_VALUE.fullmatch(value) is None:
                raise ValueError("Expected NAME=VALUE, separated by commas, values percent-encoded")
            headers[name.strip().lower()] = value
        return headers

    @property
    def model_cache_dir(self) -> Path:
        """Prepared base models."""
        return self.data_dir / "models"

    @property
    def has_remote_store(self) -> bool:
        """Tell whether adapters are kept in a bucket."""
        return self.engine.adapter_store.startswith("s3://")

    @property
    def adapter_cache_dir(self) -> Path:
        """The folder in which this machine keeps copies of adapters from a bucket."""
        return Path(self.engine.adapter_cache_dir)

    @property
    def export_dir(self) -> Path:
        """Below which scheduled exports are put, a folder for each organization."""
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
        """The file with which the first person signs in to the dashboard, until the password is changed."""
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
        """The folder in which the gateways of one `serve` count together."""
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
    """One line of the documented table."""

    name: str
    default: str
    """The default as one would write it in the environment; "" where unset."""
    doc: str


def variable(field: str) -> str:
    """Return the environment variable of a field of `Settings`, or of the engine's settings in `Settings`."""
    if field == "database_url":
        return "DATABASE_URL"
    return _OF_THE_ENGINE.get(field) or PREFIX + field.upper()


def secret_variables() -> list[str]:
    """Return the variables that hold secrets, each of which may be given as a file instead, `<variable>_FILE`."""
    return sorted(variable(field) for field in _SECRET_FIELDS)


def resolved_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with secrets read from the files that it names for them, those of clients too.

    Raises BadSetting.
    """
    try:
        return with_secrets(environ, (*secret_variables(), API_KEY_VARIABLE))
    except BadSecretFile as error:
        raise BadSetting(str(error)) from None


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read every setting; an empty value counts as unset. Raises BadSetting."""
    environ = resolved_secrets(environ)
    known = [variable(field.name) for field in (*_fields(), *_engine_fields())]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in CLIENT_VARIABLES:
            raise BadSetting(f"{name} is not a setting{_suggestion(name, known)}")
    engine = _values(_engine_fields(), environ)
    settings = Settings(**_values(_fields(), environ), engine=msgspec.structs.replace(ENGINE_DEFAULTS, **engine))
    _check_model_name(settings)
    _check_engine_endpoint(settings.engine)
    _check_metrics_listen(settings)
    _check_ports(settings)
    _check_networks(settings)
    _check_origins(settings)
    _check_adapter_places(settings)
    _check_collector_headers(settings)
    _check_content_key(settings)
    if settings.database_url is not None:
        _check_database_url("DATABASE_URL", settings.database_url)
    if settings.database_owner_url is not None:
        if settings.database_url is None:
            raise BadSetting("LORIKEET_DATABASE_OWNER_URL: needs DATABASE_URL, the same database's for gateways")
        _check_database_url("LORIKEET_DATABASE_OWNER_URL", settings.database_owner_url)
    return settings


def settings_table() -> list[SettingRow]:
    """Return every setting with its default and one line of documentation, the engine's settings behind the model's."""
    rows = [SettingRow(variable(field.name), field.show(), field.doc) for field in _fields()]
    engine = [SettingRow(variable(field.name), field.show(), _doc(field)) for field in _engine_fields()]
    split = 1 + [row.name for row in rows].index("LORIKEET_MODEL_NAME")
    return rows[:split] + engine + rows[split:]


def variables(settings: Settings) -> dict[str, str]:
    """Return the variables of the environment from which `load_settings` reads the same settings."""
    values = {variable(field.name): getattr(settings, field.name) for field in _fields()}
    values |= {variable(field.name): getattr(settings.engine, field.name) for field in _engine_fields()}
    return {name: str(value) for name, value in values.items() if value is not None}


def _fields() -> tuple[Field, ...]:
    return fields_of(Settings)


def _engine_fields() -> tuple[Field, ...]:
    return tuple(field for field in fields_of(EngineConfig) if field.name not in _NO_VARIABLE)


def _doc(field: Field) -> str:
    where = _WHERE_UNSET.get(field.name)
    return field.doc if where is None else f"{field.doc.removesuffix('.')} (unset: {where})."


def _values(fields: tuple[Field, ...], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of those fields whose variable is set. Raises BadSetting."""
    named = ((field, variable(field.name)) for field in fields)
    return {field.name: _value(name, field, environ[name]) for field, name in named if environ.get(name)}


def _value(name: str, field: Field, text: str) -> Any:
    if field.name in _PATH_FIELDS:
        return Path(text.strip())
    try:
        return field.parse(text)
    except ValueError as error:
        shown = "" if field.name in _SECRET_FIELDS else f"={text!r}"
        raise BadSetting(f"{name}{shown}: {error}") from None


def _check_model_name(settings: Settings) -> None:
    if re.fullmatch(MODEL_NAME_PATTERN, settings.model_name) is None:
        raise BadSetting(
            f"LORIKEET_MODEL={settings.model!r}: the name {settings.model_name!r} cannot be a model's id, which is not "
            "empty and has no colon and no space; choose a name with LORIKEET_MODEL_NAME"
        )


def _check_engine_endpoint(engine: EngineConfig) -> None:
    try:
        check_endpoint(engine.endpoint, is_open=engine.open_endpoint)
    except BadEndpoint as error:
        raise BadSetting(f"LORIKEET_ENGINE_ENDPOINT={engine.endpoint!r}: {error}") from None


def _check_metrics_listen(settings: Settings) -> None:
    try:
        _ = settings.metrics_address
    except ValueError as error:
        raise BadSetting(f"LORIKEET_METRICS_LISTEN={settings.metrics_listen!r}: {error}") from None


def _check_ports(settings: Settings) -> None:
    try:
        _ = settings.engine_ports
    except ValueError as error:
        raise BadSetting(f"LORIKEET_LINK_PORTS={settings.link_ports!r}: {error}") from None


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
    if "://" in settings.engine.adapter_store:
        try:
            is_bucket = parse_place(settings.engine.adapter_store).scheme == "s3"
        except WrongSource:
            is_bucket = False
        if not is_bucket:
            raise BadSetting(
                f"LORIKEET_ADAPTER_STORE={settings.engine.adapter_store!r}: Expected a folder, or s3://BUCKET/PREFIX"
            )


def _check_collector_headers(settings: Settings) -> None:
    """Check the form of the headers. The error never shows the text, which may hold a key."""
    try:
        _ = settings.collector_headers
    except ValueError as error:
        raise BadSetting(f"LORIKEET_TRACES_HEADERS: {error}") from None


def _check_content_key(settings: Settings) -> None:
    try:
        if settings.content_key is not None:
            parse_keys(settings.content_key)
    except BadContentKey as error:
        raise BadSetting(f"LORIKEET_CONTENT_KEY: {error}") from None


def _check_database_url(name: str, url: str) -> None:
    """Check the form of the URL. The error never shows the text, which holds a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        well_formed = parts.scheme in ("postgres", "postgresql") and all(urlsplit(f"//{it}").port != 0 for it in hosts)
    except ValueError:  # a port that is no number, or brackets that do not close
        well_formed = False
    if not well_formed:
        raise BadSetting(
            f"{name}: Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded"
        )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _suggestion(name: str, known: list[str]) -> str:
    bare = {other.removeprefix(PREFIX): other for other in known}
    nearest = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.5)
    return f"; did you mean {bare[nearest[0]]}?" if nearest else "; `lorikeet settings` lists them all"


def model_name_of(model: str) -> str:
    """Return the name of a base model for which no name is set."""
    return DEMO_MODEL_NAME if model == "demo" else Path(model).name.lower()
