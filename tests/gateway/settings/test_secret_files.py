"""Secrets may stand in files; an error about such a file does not show its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.agent.commands import engine_environ
from gateway.cli.chat.inference import find_access
from gateway.serve.commands import gateway_environ
from gateway.settings import BadSetting, load_settings, secret_variables
from gateway.settings.secret_files import MAX_BYTES

VALUES = {
    "DATABASE_URL": "postgresql://u:p@db/lorikeet?sslmode=require",
    "LORIKEET_ADMIN_KEY": "sk-lk-admin-abc",
    "LORIKEET_ADMIN_PASSWORD": "a long enough password ",
    "LORIKEET_CONTENT_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "LORIKEET_DATABASE_OWNER_URL": "postgresql://owner:p@db/lorikeet",
    "LORIKEET_TRACES_HEADERS": "authorization=Bearer%20abc",
}


def in_files(folder: Path, values: dict[str, str]) -> dict[str, str]:
    """Write each value to a file with a line break at its end, as editors do; returns the variables that name them."""
    for name, value in values.items():
        (folder / name).write_text(value + "\n")
    return {f"{name}_FILE": str(folder / name) for name in values}


def test_every_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    assert secret_variables() == sorted(VALUES)
    assert load_settings(in_files(tmp_path, VALUES)) == load_settings(VALUES)


def test_children_get_the_secrets_that_they_need_and_no_file_beside_them(tmp_path: Path) -> None:
    environ = in_files(tmp_path, VALUES)
    child = gateway_environ(environ, load_settings(environ), tmp_path, VALUES["DATABASE_URL"])
    assert load_settings(child).content_key == VALUES["LORIKEET_CONTENT_KEY"]
    assert not [name for name in child if name.endswith("_FILE")]
    assert engine_environ(environ) == {}


def test_a_clients_key_may_stand_in_a_file(tmp_path: Path) -> None:
    environ = in_files(tmp_path, {"LORIKEET_API_KEY": "sk-lk-abc"}) | {"LORIKEET_URL": "https://llm.example.com"}
    assert find_access(None, None, environ).key == "sk-lk-abc"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"", "Expected a file with one line, which is the secret"),
        (b"\n", "Expected a file with one line, which is the secret"),
        (b"top\nsecret\n", "Expected a file with one line, which is the secret"),
        (b"top\0secret", "Expected a file with one line, which is the secret"),
        (b"top\xffsecret", "Expected text in UTF-8"),
        (b"topsecret" * MAX_BYTES, "Expected a file of at most 64 KiB"),
    ],
)
def test_a_file_that_holds_no_secret_is_named_with_the_reason(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSetting) as refused:
        load_settings({"LORIKEET_CONTENT_KEY_FILE": str(path)})
    assert str(refused.value) == f"LORIKEET_CONTENT_KEY_FILE={str(path)!r}: {why}"


def test_a_wrong_secret_in_a_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(BadSetting) as refused:
        load_settings(in_files(tmp_path, {"LORIKEET_CONTENT_KEY": "topsecret"}))
    assert "LORIKEET_CONTENT_KEY" in str(refused.value) and "topsecret" not in str(refused.value)


def test_a_secret_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    both = in_files(tmp_path, {"DATABASE_URL": "postgresql://a/b"}) | {"DATABASE_URL": "postgresql://c/d"}
    with pytest.raises(BadSetting, match=r"^DATABASE_URL and DATABASE_URL_FILE are both set: which one is meant\?$"):
        load_settings(both)


def test_only_secrets_have_files(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="LORIKEET_PORT_FILE is not a setting"):
        load_settings({"LORIKEET_PORT_FILE": str(tmp_path / "port")})
