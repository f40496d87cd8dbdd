"""The settings of a pool whose replicas are servers of other makers, and the addresses of such servers.

A revision has its settings as texts, by the names of `ForeignSettings`. Knows neither drivers nor connections.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.config.text import Field, fields_of
from gateway.domain.pools.drivers import LOADING, OWN_DRIVER, PRELOADED, SEPARATING, UPLOADING, Driver
from gateway.domain.pools.settings import BadSetting

MAX_URL_CHARS = 512
MAX_LEN = 10_000_000
"""The upper bound on the context length in tokens, and on the choices at once, that a server may report."""


OwnKeys = Literal["none", "allowed", "required"]
"""The rule for projects' own keys at the servers of a pool.

allowed: a project without a key is served with the pool's key, and charged.
required: a project without a key is refused.
"""


TraceContext = Literal["inside", "always", "never"]
"""The servers that get the header `traceparent`, which shows which requests belong together. A client may have sent it.
inside: the servers that the internet does not reach.
"""


class ForeignSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a driver for the servers of a pool."""

    served_model: Annotated[
        str,
        Meta(
            max_length=256, description="Name of the model in requests to the server; the first one it lists if empty."
        ),
    ] = ""
    max_model_len: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_LEN,
            description="Longest prompt and completion together, in tokens; 0: as the server says, else 8192.",
        ),
    ] = 0
    max_in_flight: Annotated[
        int, Meta(ge=1, le=10_000, description="Requests that each gateway has open at one server at most.")
    ] = 64
    max_choices: Annotated[int, Meta(ge=1, le=128, description="Most choices of one request.")] = 1
    adapter_folder: Annotated[
        str,
        Meta(
            max_length=512,
            description="Folder of the adapter store as the servers see it, from which they load adapters; the base "
            "alone answers if empty.",
        ),
    ] = ""
    preloaded_adapters: Annotated[
        bool, Meta(description="Whether the adapters answer with which the servers were started.")
    ] = False
    upload_adapters: Annotated[
        bool, Meta(description="Whether adapters are sent to the servers, which keep each as a model of its own.")
    ] = False
    separate_caches: Annotated[
        bool, Meta(description="Whether servers get no requests whose prompt cache tenants would share.")
    ] = False
    max_adapters: Annotated[
        int, Meta(ge=1, le=10_000, description="Adapters that each gateway has loaded at one server at most.")
    ] = 8
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Device of servers that agents start: auto, cpu or cuda.")
    ] = "auto"
    num_slots: Annotated[
        int, Meta(ge=1, le=256, description="Requests that a server which an agent starts computes at once.")
    ] = 4
    num_threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Threads of a server that an agent starts; 0: its share of the host, as that of engines.",
        ),
    ] = 0
    kv_cache_bytes: Annotated[
        int,
        Meta(ge=1 << 30, description="KV cache of a vLLM that an agent starts on processors; whole GiB count."),
    ] = 1 << 30
    gpu_memory_fraction: Annotated[
        float, Meta(gt=0, le=1, description="Part of an accelerator that a vLLM takes which an agent starts.")
    ] = 0.9
    max_adapter_rank: Annotated[
        int, Meta(ge=1, le=512, description="Largest rank of adapters at a vLLM that an agent starts.")
    ] = 64
    own_keys: Annotated[
        OwnKeys,
        Meta(
            description="Whether projects may bring keys of their own for the servers, with which they are charged for "
            "no tokens, or have to."
        ),
    ] = "none"
    trace_context: Annotated[
        TraceContext,
        Meta(
            description="Whether servers get the trace of a request, in the header traceparent: always, never, or "
            "those inside, which are at private addresses or started by agents."
        ),
    ] = "inside"
    allow_private: Annotated[
        bool, Meta(description="Whether servers may be at private addresses, such as 127.0.0.1 or 10.0.0.1.")
    ] = False
    connect_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Longest time until a connection to a server is open.")
    ] = 5.0
    first_token_seconds: Annotated[
        float, Meta(gt=0, le=86400, description="Longest time from a request to the first part of its reply.")
    ] = 120.0
    idle_seconds: Annotated[float, Meta(gt=0, le=86400, description="Longest time between two parts of a reply.")] = (
        60.0
    )
    total_seconds: Annotated[float, Meta(gt=0, le=86400, description="Longest time that a whole reply may take.")] = (
        1800.0
    )
    health_seconds: Annotated[
        float, Meta(ge=0.05, le=600, description="Seconds between two looks at the health of a server.")
    ] = 5.0


FOREIGN_SETTINGS: Mapping[str, Field] = {field.name: field for field in fields_of(ForeignSettings)}
"""The settings by name, with their documentation."""

UNKNOWN_LEN = 8192
"""The longest prompt and completion together where neither the settings nor a server say it."""


def parse_foreign_settings(settings: Mapping[str, str]) -> ForeignSettings:
    """Return the settings of a revision.

    Raises BadSetting: for a name that is no such setting, or a value that does not fit.
    """
    values: dict[str, Any] = {}
    for name, text in settings.items():
        field = FOREIGN_SETTINGS.get(name)
        if field is None:
            known = f"these are: {', '.join(FOREIGN_SETTINGS)}"
            reason = f"it is no setting of a pool of other servers; {known}"
            raise BadSetting(name, reason, f"{name!r} is no setting of a pool of other servers; {known}")
        try:
            values[name] = field.parse(text)
        except ValueError as error:
            raise BadSetting(name, str(error), f"{name}={text!r}: {error}") from None
    return ForeignSettings(**values)


def check_abilities(driver: Driver, model: str, settings: ForeignSettings) -> None:
    """Check that servers of a driver can do what the settings ask. model: as the operator named it.

    Raises BadSetting: when no server of the driver can do what a setting asks.
    """
    folder = settings.adapter_folder
    if settings.separate_caches and driver not in SEPARATING:
        reason = f"tenants share the prompt cache of servers of '{driver}'"
        raise BadSetting("separate_caches", reason, f"separate_caches: {reason}")
    for name, is_set, drivers in (
        ("adapter_folder", bool(folder), LOADING),
        ("preloaded_adapters", settings.preloaded_adapters, PRELOADED),
        ("upload_adapters", settings.upload_adapters, UPLOADING),
    ):
        reason = ""
        if is_set and driver not in drivers:
            reason = f"no server of '{driver}' has adapters in this way"
        elif is_set and not model:
            reason = "adapters belong to a base model: name it with 'model'"
        if reason:
            raise BadSetting(name, reason, f"{name}: {reason}")
    if settings.upload_adapters and not settings.served_model:
        reason = "adapters are made of a base model of the servers: name it with served_model"
        raise BadSetting("upload_adapters", reason, f"upload_adapters: {reason}")
    if folder and not (folder.startswith("/") and folder.isprintable()):
        reason = "expected an absolute path on the servers"
        raise BadSetting("adapter_folder", reason, f"adapter_folder: {reason}")


_OF_STARTED = ("device", "num_slots", "num_threads", "kv_cache_bytes", "gpu_memory_fraction", "max_adapter_rank")
"""The names of settings that only servers started by agents have."""

_OF_ADDRESSES = ("allow_private", "served_model")
"""The names of settings that only servers at given addresses have, which run already."""


def check_started_settings(driver: Driver, model: str, settings: Mapping[str, str], *, starts: bool) -> None:
    """Check that each setting fits servers that agents start, or servers that run already.

    model: as the operator named it.

    Raises BadSetting: for a setting that fits only the other kind: servers that run already, or that agents start.
    Raises ValueError: when agents cannot start a server of the model.
    """
    for name in settings:
        if not starts and name in _OF_STARTED:
            reason = "agents do not start the servers of this pool, which run already"
            raise BadSetting(name, reason, f"{name}: {reason}")
        if starts and name in _OF_ADDRESSES:
            reason = "agents start the servers of this pool, and know where they are and what they serve"
            raise BadSetting(name, reason, f"{name}: {reason}")
    if starts and driver == "llamacpp" and not (model == "demo" or model.endswith(".gguf")):
        raise ValueError("llama.cpp reads a .gguf file: name its absolute path on the hosts, or 'demo'")


def with_adapters(driver: Driver, settings: Mapping[str, str], *, store: str) -> dict[str, str]:
    """Return the settings of servers that agents start, with the way in which adapters come to them.

    store: the adapter store. vLLM cannot read a bucket by itself, so that the base alone answers there, unless the
    settings name a folder.
    """
    if driver == "llamacpp":
        return {"preloaded_adapters": "true", **settings}
    return dict(settings) if "://" in store else {"adapter_folder": store, **settings}


def has_adapters(driver: Driver, settings: Mapping[str, str]) -> bool:
    """Tell whether adapters of its model are served under a revision with these settings, whose values are valid."""
    if driver == OWN_DRIVER:
        return True
    parsed = parse_foreign_settings(settings)
    return bool(parsed.adapter_folder) or parsed.preloaded_adapters or parsed.upload_adapters


def own_keys_of(driver: Driver, settings: Mapping[str, str]) -> OwnKeys:
    """Return the rule for projects' own keys under a revision with these settings, whose values are valid."""
    return "none" if driver == OWN_DRIVER else parse_foreign_settings(settings).own_keys


def check_server_url(url: str) -> str:
    """Return the address of a server without a slash at its end.

    Raises ValueError: when no driver connects to such an address; the error says why in words.
    """
    if len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url or not url.isascii():
        raise ValueError(f"expected a URL of at most {MAX_URL_CHARS} printable ASCII characters")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL holds no user and no password: give the server's key by itself")
    if parts.query or parts.fragment:
        raise ValueError("a server's URL has no query and no fragment")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port is no number from 0 to 65535") from None
    return url.rstrip("/")


def opaque_digest(pool_id: str, driver: str, served_model: str) -> str:
    """Return the digest that identifies a base model whose files only its server knows: no adapter has this digest."""
    text = "\0".join(("foreign base", pool_id, driver, served_model))
    return hashlib.sha256(text.encode()).hexdigest()
