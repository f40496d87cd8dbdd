"""`lorikeet adapter` where something goes wrong: an archive that changed during an import, bad names, no engine to
probe an adapter."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.adapters.cooldown import FIRST_PAUSE_S, NUM_FREE
from gateway.cli.adapters.adapter_upload import MAX_WHOLE_BYTES
from tests.gateway.admin.adapter_uploads import WEIGHTS
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.gateway.cli.conftest import Cli

T = ("--tenant", "acme")
LEFT_S = 4.0
"""Seconds that remain of a pause: more than a command takes until its request."""


@pytest.fixture
async def acme(lorikeet: Cli) -> str:
    """Return the path of the tenant."""
    return f"/projects/{(await lorikeet.json('tenant', 'create', 'acme'))['id']}"


async def begin_import(server: AdminServer, acme: str, **wanted: object) -> str:
    """Begin an import, send its first byte, and return its id."""
    async with server.client(server.operator_key) as client:
        made = await client.post(f"{acme}/adapter_imports", json={"name": "a"} | wanted)
        await client.patch(f"{acme}/adapter_imports/{made.json()['id']}", content=b"x", headers={"upload-offset": "0"})
    return str(made.json()["id"])


async def test_an_upload_is_not_resumed_with_a_changed_archive(
    lorikeet: Cli, server: AdminServer, acme: str, tmp_path: Path
) -> None:
    one, other = tmp_path / "one.tar", tmp_path / "other.tar"
    one.write_bytes(b"x" * 10)
    other.write_bytes(b"y" * 10)
    begun = await begin_import(server, acme, size_bytes=10, sha256=hashlib.sha256(one.read_bytes()).hexdigest())
    code, _, err = await lorikeet("adapter", "add", str(other), *T, "--name", "a", "--resume", begun)
    assert (code, f"{other} has changed since {begun} began" in err) == (1, True)
    (known,) = await lorikeet.json("adapter", "imports", *T)
    assert (known["state"], known["received_bytes"]) == ("receiving", 1), "nothing was sent"


async def test_a_resumed_upload_is_promoted_as_it_was_begun(
    lorikeet: Cli, server: AdminServer, acme: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x" * 10)
    for promote, flags, why in (
        (True, ("--no-promote",), "was begun without --no-promote"),
        (False, (), "was begun with --no-promote"),
    ):
        begun = await begin_import(server, acme, size_bytes=10, promote=promote)
        code, _, err = await lorikeet("adapter", "add", str(path), *T, "--name", "a", "--resume", begun, *flags)
        assert (code, f"{begun} {why}" in err) == (1, True)


async def test_adding_an_adapter_whose_probe_is_pending_does_not_exit_with_success(
    lorikeet: Cli, server: AdminServer, acme: str, tmp_path: Path
) -> None:
    server.engines.is_ready = False
    add = ("adapter", "add", str(write_adapter(tmp_path / "a")), *T, "--name", "a", "--wait", "0")
    code, out, err = await lorikeet(*add)
    assert (code, err) == (4, "")
    assert ":a waits for an engine to try it" in out


async def test_a_base_can_be_named_however_the_adapter_comes(
    lorikeet: Cli, server: AdminServer, acme: str, tmp_path: Path
) -> None:
    folder = str(write_adapter(tmp_path / "a"))
    large = tmp_path / "large.tar"
    large.write_bytes(b"x" * (MAX_WHOLE_BYTES + 1))
    (base,) = server.services.bases.names
    for what in (folder, str(large), "https://models.example.com/x.tar"):
        code, _, err = await lorikeet("adapter", "add", what, *T, "--name", "a", "--base", "elsewhere")
        assert (code, f"'base': expected the name of a base model that is served: '{base}'" in err) == (1, True), what
    assert await lorikeet.json("adapter", "list", *T) == []
    added = await lorikeet.json("adapter", "add", folder, *T, "--name", "a", "--base", base)
    assert added["model"] == f"{base}:a"


async def test_a_resumed_upload_keeps_its_base(lorikeet: Cli, acme: str, tmp_path: Path) -> None:
    path = str(write_adapter(tmp_path / "a"))
    code, _, err = await lorikeet("adapter", "add", path, *T, "--name", "a", "--resume", "imp_x", "--base", "tiny")
    assert (code, "--resume keeps the base model" in err) == (2, True)


async def test_names_and_ids_with_slashes_are_not_sent_as_other_paths(lorikeet: Cli, acme: str) -> None:
    for argv in (
        ("adapter", "remove", "..", *T),
        ("adapter", "show", "..", *T),
        ("adapter", "show", "a/../b@1", *T),
        ("adapter", "versions", "x/versions?a=", *T),
        ("adapter", "cancel-import", "..", *T),
        ("alias", "set", "..", "a@1", *T),
        ("alias", "remove", "../x", *T),
        ("key", "revoke", ".."),
        ("webhook", "remove", ".."),
    ):
        # Where nobody listens: it is refused before anything is sent.
        code, out, err = await lorikeet(*argv, LORIKEET_PORT="1")
        assert (code, out, err.count("\n")) == (1, "", 1), argv
        assert "is not valid" in err or "is not an id" in err


@pytest.mark.parametrize("words", [("--temperature", "nan"), ("--top-p", "inf"), ("--min-p", "x")])
async def test_a_default_is_a_number(lorikeet: Cli, words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        await lorikeet("adapter", "set", "x", *T, *words)
    assert ended.value.code == 2
    assert f"argument {words[0]}: expected a number, not '{words[1]}'" in capsys.readouterr().err


async def test_removing_an_adapter_tells_which_aliases_went(lorikeet: Cli, acme: str, tmp_path: Path) -> None:
    await lorikeet.json("adapter", "add", str(write_adapter(tmp_path / "a")), *T, "--name", "a")
    await lorikeet.json("alias", "set", "bot", "a@1", *T)
    (known,) = await lorikeet.json("adapter", "imports", *T)
    assert known["received_bytes"] == known["size_bytes"] > (tmp_path / "a" / WEIGHTS).stat().st_size
    code, out, _ = await lorikeet("adapter", "show", "a@1", *T)
    assert (code, "k_proj: 0-1\n" in out) == (0, True)
    code, out, _ = await lorikeet("adapter", "remove", "a", *T)
    assert (code, out) == (
        0,
        "adapter a of acme is removed, and with it the aliases that pointed at it: bot\n",
    )


async def test_merging_needs_a_folder(lorikeet: Cli, tmp_path: Path) -> None:
    packed = tmp_path / "a.zip"
    packed.write_bytes(b"PK")
    folders = ("--base", str(tmp_path), "--out", str(tmp_path / "out"))
    code, _, err = await lorikeet("adapter", "merge", "--adapter", str(packed), *folders)
    assert (code, err) == (
        1,
        f"lorikeet: --adapter: {packed} is not a folder; expected one that PEFT's save_pretrained wrote\n",
    )


async def test_a_tenant_whose_adapters_were_refused_waits_and_is_told(
    lorikeet: Cli, server: AdminServer, acme: str, tmp_path: Path
) -> None:
    for _ in range(NUM_FREE):
        await begin_import(server, acme, size_bytes=1)
    folder = str(write_adapter(tmp_path / "a"))
    async with server.services.database.acquire() as conn:
        refused_s = FIRST_PAUSE_S - LEFT_S
        await conn.execute(
            "UPDATE adapter_imports SET state = 'rejected', updated_at = now() - $1 * interval '1 second'", refused_s
        )
    code, out, err = await lorikeet("adapter", "add", folder, *T, "--name", "a")
    assert (code, "is now version 1" in out) == (0, True)
    assert err.startswith(
        f"waiting: The last {NUM_FREE} adapters of this project were refused, so the next can be added in "
    )
