"""Settings come from the environment, and every variable that is wrong or unknown is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.config.text import fields_of
from gateway.settings import (
    ENGINE_DEFAULTS,
    MAX_SOCKET_PATH_BYTES,
    BadSetting,
    Settings,
    load_settings,
    settings_table,
    variable,
    variables,
)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({"PATH": "/bin", "LORIKEET_MODEL": ""})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.model_name) == ("127.0.0.1", 8080, "smollm2-135m-instruct")
    assert settings.data_dir == Path.cwd() / ".lorikeet"


def test_every_variable_is_read() -> None:
    settings = load_settings(
        {
            "LORIKEET_HOST": "::",
            "LORIKEET_PORT": "9000",
            "LORIKEET_DATA_DIR": "/data",
            "LORIKEET_MODEL": "org/Some-Model",
            "LORIKEET_DEVICE": "cuda",
            "LORIKEET_KV_CACHE_BYTES": "2GiB",
            "LORIKEET_MAX_BODY_BYTES": "1000",
            "LORIKEET_DRAIN_SECONDS": "1.5",
            "DATABASE_URL": "postgresql://db/lorikeet",
        }
    )
    assert settings == Settings(
        host="::",
        port=9000,
        data_dir=Path("/data"),
        model="org/Some-Model",
        model_name="some-model",
        engine=msgspec.structs.replace(ENGINE_DEFAULTS, device="cuda", kv_cache_bytes=2 << 30),
        max_body_bytes=1000,
        drain_seconds=1.5,
        database_url="postgresql://db/lorikeet",
    )
    assert settings.base_url == "http://[::1]:9000"
    assert settings.engine.endpoint == "ipc:///data/run/engine.sock"


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("LORIKEET_PORT", "http", "LORIKEET_PORT='http': Expected a whole number"),
        ("LORIKEET_PORT", "0", "LORIKEET_PORT='0': Expected a whole number >= 1"),
        ("LORIKEET_PORT", "65536", "LORIKEET_PORT='65536': Expected a whole number <= 65535"),
        ("LORIKEET_DEVICE", "tpu", "LORIKEET_DEVICE='tpu': Expected one of auto, cpu, cuda"),
        ("LORIKEET_KV_CACHE_BYTES", "2 parsecs", "LORIKEET_KV_CACHE_BYTES='2 parsecs': Expected a number of bytes"),
        ("LORIKEET_DRAIN_SECONDS", "nan", "LORIKEET_DRAIN_SECONDS='nan': Expected a number >= 0"),
        ("LORIKEET_MODEL_NAME", "base:adapter", "LORIKEET_MODEL_NAME='base:adapter': Expected a text matching"),
        ("LORIKEET_MODEL", "/models/my model", "LORIKEET_MODEL='/models/my model': the name 'my model' cannot be"),
        ("LORIKEET_MODEL", "/", "LORIKEET_MODEL='/': the name '' cannot be a model's id"),
        ("LORIKEET_MAX_WAITING", "0", "LORIKEET_MAX_WAITING='0': Expected a whole number >= 1"),
        ("LORIKEET_TRUSTED_PROXIES", "10.0.0.0/8, proxy", "LORIKEET_TRUSTED_PROXIES='10.0.0.0/8, proxy': 'proxy' does"),
        ("LORIKEET_TRUSTED_PROXIES", "10.0.0.1/8", "LORIKEET_TRUSTED_PROXIES='10.0.0.1/8': 10.0.0.1/8 has host bits"),
        ("LORIKEET_CORS_ORIGINS", "*", "LORIKEET_CORS_ORIGINS='*': Expected origins such as"),
        ("LORIKEET_CORS_ORIGINS", "https://a.b/", "LORIKEET_CORS_ORIGINS='https://a.b/': Expected origins such as"),
        ("LORIKEET_CORS_ORIGINS", "a.b", "LORIKEET_CORS_ORIGINS='a.b': Expected origins such as"),
        ("LORIKEET_ADAPTER_SOURCES", "hf://org, my-org", "LORIKEET_ADAPTER_SOURCES: 'my-org' is no source: expected"),
        ("LORIKEET_ADAPTER_SOURCES", "https://a.b/*", "LORIKEET_ADAPTER_SOURCES: 'https://a.b/*' is no source: exp"),
        ("LORIKEET_ADAPTER_STORE", "gs://a/b", "LORIKEET_ADAPTER_STORE='gs://a/b': Expected a folder, or s3://BUCKET"),
        ("LORIKEET_ADAPTER_STORE", "s3://a,s3://b", "LORIKEET_ADAPTER_STORE='s3://a,s3://b': Expected a folder, or s3"),
        ("LORIKEET_ADAPTER_CACHE_BYTES", "much", "LORIKEET_ADAPTER_CACHE_BYTES='much': Expected a number of bytes"),
        ("LORIKEET_PROT", "1", "LORIKEET_PROT is not a setting; did you mean LORIKEET_PORT?"),
        ("LORIKEET_DATABASE_URL", "x", "LORIKEET_DATABASE_URL is not a setting; did you mean DATABASE_URL?"),
        ("LORIKEET_ZZZ", "x", "LORIKEET_ZZZ is not a setting; `lorikeet settings` lists them all"),
    ],
)
def test_a_wrong_variable_is_named_in_one_line_with_the_reason(variable: str, value: str, why: str) -> None:
    with pytest.raises(BadSetting) as refused:
        load_settings({variable: value})
    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        "ipc:///a folder/engine.sock",
        "tcp://127.0.0.1:5555",
        "tcp://127.9.9.9:5555",
        "tcp://[::1]:1",
        "tcp://localhost:1",
        "ipc://@lorikeet",
    ],
)
def test_an_engine_on_this_machine_may_be_anywhere_where_that_is_allowed(endpoint: str) -> None:
    allowed = {"LORIKEET_ENGINE_ENDPOINT": endpoint, "LORIKEET_OPEN_ENDPOINT": "true"}
    assert load_settings(allowed).engine.endpoint == endpoint
    if not endpoint.startswith("ipc:///"):
        with pytest.raises(BadSetting, match=r"^LORIKEET_ENGINE_ENDPOINT=.*every user of this machine.*OPEN_ENDPOINT"):
            load_settings({"LORIKEET_ENGINE_ENDPOINT": endpoint})


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://10.0.0.1:5555",
        "tcp://0.0.0.0:5555",
        "tcp://*:5555",
        "tcp://engine.local:5555",
        "tcp://localhost.example.com:5555",
        "tcp://[::]:5555",
        "tcp://127.0.0.1:0;10.0.0.1:5555",
        "tcp://127.0.0.1",
        "udp://127.0.0.1:5555",
        "ipc://",
        "ipc://*",
        "ipc://@",
        "engine.sock",
    ],
)
def test_an_engine_elsewhere_is_refused_as_its_messages_would_travel_in_the_clear(endpoint: str) -> None:
    with pytest.raises(
        BadSetting, match=r"^LORIKEET_ENGINE_ENDPOINT=.*only engines on this machine are reached without keys"
    ):
        load_settings({"LORIKEET_ENGINE_ENDPOINT": endpoint, "LORIKEET_OPEN_ENDPOINT": "true"})


@pytest.mark.parametrize(
    "url",
    [
        "db",
        "mysql://u:secret@h/d",
        "postgresql://u:secret@h:port/d",
        "postgres://u:sec/ret@h/d",
        "postgres://u@h:99999/d",
    ],
)
def test_a_malformed_database_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(BadSetting) as refused:
        load_settings({"DATABASE_URL": url})
    assert str(refused.value).startswith("DATABASE_URL: Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["postgres://u:p%2F@[::1]:1/d", "postgresql:///d?host=/run", "postgresql://a:1,b:2/d", "postgresql://"]
)
def test_every_form_of_a_database_url_is_taken(url: str) -> None:
    assert load_settings({"DATABASE_URL": url}).database_url == url


def test_adapters_lie_in_a_folder_that_every_process_finds_or_in_a_bucket() -> None:
    assert load_settings({"LORIKEET_DATA_DIR": "/data"}).engine.adapter_store == "/data/adapters"
    relative = load_settings({"LORIKEET_ADAPTER_STORE": "kept", "LORIKEET_ADAPTER_FOLDER": "watched"})
    assert (relative.engine.adapter_store, relative.has_remote_store) == (str(Path.cwd() / "kept"), False)
    assert relative.adapter_folder == Path.cwd() / "watched"
    remote = load_settings({"LORIKEET_ADAPTER_STORE": "s3://bucket/prefix"})
    assert (remote.engine.adapter_store, remote.has_remote_store) == ("s3://bucket/prefix", True)


def test_the_table_documents_every_field_with_a_default_that_reads_back() -> None:
    table = settings_table()
    of_the_engine = set(EngineConfig.__struct_fields__) - {
        "model_dir",
        "adapter_cache_dir",
        "block_size",
        "link_dir",
        "unattended_s",
    }
    assert len(table) == len(set(Settings.__struct_fields__) - {"engine"}) + len(of_the_engine)
    assert {row.name for row in table} >= {variable(name) for name in of_the_engine}
    assert all(row.doc.endswith(".") for row in table)
    assert load_settings({row.name: row.default for row in table}) == Settings()


def test_sockets_fit_the_operating_system_however_deep_the_data_folder_is() -> None:
    deep = Settings(data_dir=Path("/" + "deep/" * 30))
    assert len(f"{deep.run_dir}/engine.sock".encode()) <= MAX_SOCKET_PATH_BYTES
    assert deep.run_dir != Settings(data_dir=Path("/" + "deep/" * 31)).run_dir


EVERY_ENGINE_VARIABLE = {
    "LORIKEET_ENGINE_ENDPOINT": "ipc:///elsewhere.sock",
    "LORIKEET_OPEN_ENDPOINT": "true",
    "LORIKEET_DEVICE": "cuda",
    "LORIKEET_DTYPE": "float16",
    "LORIKEET_QUANTIZATION": "int8",
    "LORIKEET_KV_DTYPE": "fp8",
    "LORIKEET_NATIVE_PATH": "avx2",
    "LORIKEET_DECODER": "own",
    "LORIKEET_KV_CACHE_BYTES": "512MiB",
    "LORIKEET_MAX_MODEL_LEN": "100",
    "LORIKEET_MAX_NUM_SEQS": "7",
    "LORIKEET_MAX_BATCHED_TOKENS": "300",
    "LORIKEET_MAX_WAITING": "9",
    "LORIKEET_NUM_THREADS": "3",
    "LORIKEET_MAX_ADAPTERS": "5",
    "LORIKEET_MAX_ADAPTER_RANK": "64",
    "LORIKEET_ADAPTER_DEVICE_BYTES": "2GiB",
    "LORIKEET_ADAPTER_HOST_BYTES": "3GiB",
    "LORIKEET_ADAPTER_STORE": "s3://bucket/prefix",
    "LORIKEET_ADAPTER_CACHE_BYTES": "4GiB",
    "LORIKEET_GPU_MEMORY_FRACTION": "0.5",
    "LORIKEET_NUM_DRAFT_TOKENS": "4",
    "LORIKEET_BATCH_LENGTHENING": "0.3",
    "LORIKEET_BATCH_STEP_MS": "20",
    "LORIKEET_BATCH_SHARE": "0.1",
}
"""A non-default value for each of the engine's variables. The names are promised: none is ever renamed."""


def test_every_variable_of_the_engine_reaches_its_field_and_is_written_back() -> None:
    settings = load_settings(EVERY_ENGINE_VARIABLE | {"LORIKEET_DATA_DIR": "/data"})
    changed = {field.name for field in fields_of(EngineConfig) if getattr(settings.engine, field.name) != field.default}
    assert changed == {field.name for field in fields_of(EngineConfig)}
    assert (settings.engine.max_num_seqs, settings.engine.adapter_cache_bytes) == (7, 4 << 30)
    assert (settings.engine.adapter_cache_dir, settings.engine.model_dir) == ("/data/adapter-cache", "")
    assert load_settings(variables(settings)) == settings


def test_the_gateway_and_the_engine_bound_the_cache_of_a_bucket_by_the_same_default() -> None:
    assert load_settings({}).engine.adapter_cache_bytes == 8 << 30
    (field,) = (field for field in fields_of(EngineConfig) if field.name == "adapter_cache_bytes")
    assert field.default == 8 << 30


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "llm.example.com",
            "ftp://llm.example.com",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://a#b",
            "https://a b",
        ),
        *("https://llm.example.com:99999", "https://llm.example.com:0", "https://a:b", "https://[::1", "https://me@a"),
    ],
)
def test_a_public_url_that_is_none_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(BadSetting, match=r"^LORIKEET_PUBLIC_URL=.*https://llm\.example\.com") as refused:
        load_settings({"LORIKEET_PUBLIC_URL": wrong})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("good", ["", "https://llm.example.com", "http://[::1]:8080/", "https://llm.example.com:8443"])
def test_a_public_url_has_a_host_and_maybe_a_port(good: str) -> None:
    assert load_settings({"LORIKEET_PUBLIC_URL": good}).public_url == good


def test_a_first_password_has_bounds() -> None:
    assert load_settings({"LORIKEET_ADMIN_PASSWORD": "x" * 12}).admin_password == "x" * 12
    with pytest.raises(BadSetting, match=r"^LORIKEET_ADMIN_PASSWORD: Expected a text of length >= 12$"):
        load_settings({"LORIKEET_ADMIN_PASSWORD": "x" * 11})


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ("", {}),
        ("authorization=Bearer%20a%2Cb", {"authorization": "Bearer a,b"}),
        ("X-A=1, x-b = 2=3", {"x-a": "1", "x-b": "2=3"}),
    ],
)
def test_headers_for_the_collector_are_read_as_opentelemetry_writes_them(given: str, headers: dict[str, str]) -> None:
    assert load_settings({"LORIKEET_TRACES_HEADERS": given}).collector_headers == headers


@pytest.mark.parametrize("wrong", ["topsecret", "=topsecret", "a b=topsecret", "a=topsecret%0d%0ahost:x", "a=", "a=é"])
def test_wrong_headers_for_the_collector_are_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(BadSetting, match="LORIKEET_TRACES_HEADERS: Expected NAME=VALUE") as refused:
        load_settings({"LORIKEET_TRACES_HEADERS": wrong})
    assert "topsecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("URL", "127.0.0.1:4318"),
        ("URL", "ftp://x/"),
        ("URL", "https://user:password@x/"),
        ("SAMPLER", "jaeger_remote"),
        ("RATIO", "1.5"),
        ("RATIO", "-0.1"),
    ],
)
def test_wrong_settings_of_traces_stop_the_start(name: str, wrong: str) -> None:
    with pytest.raises(BadSetting, match=f"LORIKEET_TRACES_{name}"):
        load_settings({f"LORIKEET_TRACES_{name}": wrong})
