"""Tenants, keys and adapters from the command line, with exit codes and single lines that scripts can rely on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.cli.client import PAGE_LIMIT
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.domain.errors import InvalidApiKey
from gateway.serve.lock import data_folder_lock
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.gateway.cli.conftest import Cli


async def test_a_tenant_is_created_once_and_named_again(lorikeet: Cli) -> None:
    created = await lorikeet.json("tenant", "create", "acme")
    again = await lorikeet.json("tenant", "create", "acme")
    assert (created["name"], created["created"]) == ("acme", True)
    assert again == created | {"created": False}
    code, out, _ = await lorikeet("tenant", "create", "acme")
    assert (code, out) == (0, f"tenant acme exists already: {created['id']}\n")
    listed = await lorikeet.json("tenant", "list")
    assert [tenant["id"] for tenant in listed] == [created["id"]]


@pytest.mark.parametrize("wrong", ["..", "../models", "a/b", "", "x?y", "x#y"])
async def test_words_that_are_no_id_are_refused_before_anything_is_sent(
    lorikeet: Cli, server: AdminServer, wrong: str
) -> None:
    await server.user("cara@example.com", "viewer")
    email = ("--email", "cara@example.com")
    for words in (
        *(("user", "passkeys", "remove", wrong, *email), ("key", "revoke", wrong)),
        *(("batch", "status", wrong), ("batch", "cancel", wrong), ("batch", "results", wrong, "--out", "/nowhere")),
        *(("file", "delete", wrong), ("file", "get", wrong, "--out", "/nowhere")),
    ):
        access = ("--url", server.url, "--key", "sk-lk-x") if words[0] in ("batch", "file") else ()
        code, _, err = await lorikeet(*words, *access)
        assert (code, "is not an id" in err) == (1, True), (words, err)
    assert "cara@example.com" in [user["email"] for user in await lorikeet.json("user", "list")]


async def test_lists_hold_every_page_in_aligned_columns(lorikeet: Cli, server: AdminServer) -> None:
    names = ["a", "a-much-longer-name", *(f"tenant-{number}" for number in range(PAGE_LIMIT))]
    async with server.services.database.acquire() as conn, conn.transaction():
        organization = await ensure_organization(conn, "default")
        for name in names:
            await create_project(conn, organization.id, name)
    code, out, err = await lorikeet("tenant", "list")
    header, *rows = out.splitlines()
    assert (code, err, sorted(row.split()[0] for row in rows)) == (0, "", sorted(names))
    assert {row.index("proj_") for row in rows} == {header.index("ID")}


async def test_a_key_opens_its_tenant_until_it_is_revoked(lorikeet: Cli, server: AdminServer) -> None:
    tenant = await lorikeet.json("tenant", "create", "acme")
    key = await lorikeet.json("key", "create", "--tenant", "acme", "--name", "app")
    principal = await server.services.authenticator.authenticate(f"Bearer {key['key']}")
    assert (principal.project_id, principal.api_key_id) == (tenant["id"], key["id"])
    _, out, err = await lorikeet("key", "create", "--tenant", "acme")
    by_script = await server.services.authenticator.authenticate(f"Bearer {out.strip()}")
    assert f"key revoke {by_script.api_key_id}`" in err

    (listed, _) = await lorikeet.json("key", "list", "--tenant", "acme")
    assert (listed["id"], listed["name"], listed["revoked_at"]) == (key["id"], "app", None)
    for _ in range(2):
        assert await lorikeet.json("key", "revoke", key["id"]) == {"id": key["id"], "revoked": True}
    (revoked, _) = await lorikeet.json("key", "list", "--tenant", "acme")
    assert revoked["revoked_at"] is not None
    with pytest.raises(InvalidApiKey):
        await server.services.authenticator.authenticate(f"Bearer {key['key']}")


async def test_an_adapter_is_added_listed_and_removed(lorikeet: Cli, server: AdminServer, tmp_path: Path) -> None:
    await lorikeet.done("tenant", "create", "acme")
    folder = str(write_adapter(tmp_path / "pirate"))
    added = await lorikeet.json("adapter", "add", "--tenant", "acme", "--name", "pirate", folder)
    assert (added["model"], added["version"], added["changed"]) == ("tiny:pirate", 1, True)
    code, out, _ = await lorikeet("adapter", "add", "--tenant", "acme", "--name", "pirate", folder)
    assert (code, out) == (0, f"tiny:pirate is already version 1 ({added['digest'][:12]})\n")
    (listed,) = await lorikeet.json("adapter", "list", "--tenant", "acme")
    assert listed["digest"] == added["digest"]
    removed = await lorikeet.json("adapter", "remove", "--tenant", "acme", "pirate")
    assert removed == {"name": "pirate", "removed": True, "aliases": []}
    assert await lorikeet.json("adapter", "list", "--tenant", "acme") == []
    assert await server.services.lifecycle.collector.collect() == [added["digest"]]


async def test_refusals_are_one_line_and_exit_1(lorikeet: Cli, tmp_path: Path) -> None:
    await lorikeet.done("tenant", "create", "acme")
    wide = str(write_adapter(tmp_path / "wide", in_features=9))
    pipe = str(write_adapter(tmp_path / "pipe"))
    (tmp_path / "pipe" / "adapter_model.safetensors").unlink()
    os.mkfifo(tmp_path / "pipe" / "adapter_model.safetensors")
    nobody = "lorikeet: there is no tenant named 'nobody'; `lorikeet tenant list` lists all tenants\n"
    for argv, message in [
        (("tenant", "create", " "), "lorikeet: Invalid value for 'name'"),
        (("key", "list", "--tenant", "nobody"), nobody),
        (("key", "revoke", "key_nothing"), "lorikeet: No API key has the id"),
        (
            ("adapter", "add", "--tenant", "acme", "--name", "x", str(tmp_path / "gone")),
            f"lorikeet: {tmp_path}/gone does not",
        ),
        (
            ("adapter", "add", "--tenant", "acme", "--name", "x", f"{wide}/adapter_config.json"),
            "lorikeet: The adapter was refused: the file is neither a tar",
        ),
        (
            ("adapter", "add", "--tenant", "acme", "--name", "x", pipe),
            f"lorikeet: {pipe}: adapter_model.safetensors is",
        ),
        (("adapter", "add", "--tenant", "acme", "--name", "x", wide), "lorikeet: The adapter was refused: layer 0"),
        (("adapter", "add", "--tenant", "acme", "--name", "X", wide), "lorikeet: adapter name 'X' is not valid"),
        (("adapter", "remove", "--tenant", "acme", "x"), "lorikeet: The project has no adapter named 'x'.\n"),
    ]:
        code, out, err = await lorikeet(*argv)
        assert (code, out) == (1, "")
        assert err.startswith(message)
        assert err.count("\n") == 1
    code, _, err = await lorikeet("tenant", "list", LORIKEET_ADMIN_KEY="sk-wrong")
    assert (code, err) == (1, "lorikeet: Incorrect API key provided.\n")


async def test_without_a_server_a_command_says_how_to_start_one_and_exits_3(lorikeet: Cli, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free_port = str(listener.getsockname()[1])
    code, out, err = await lorikeet("tenant", "list", LORIKEET_PORT=free_port)
    assert (code, out) == (3, "")
    assert err == f"lorikeet: no server answers at http://127.0.0.1:{free_port}; start it with `lorikeet serve`\n"
    code, _, err = await lorikeet("tenant", "list", LORIKEET_DATA_DIR=str(tmp_path / "elsewhere"))
    assert (code, err.startswith("lorikeet: there is no operator's key at ")) == (3, True)


async def test_the_server_of_the_data_folder_is_found_by_its_lock(
    server: AdminServer, lorikeet: Cli, tmp_path: Path
) -> None:
    del lorikeet.environ["LORIKEET_PORT"]
    with data_folder_lock(tmp_path, server.url):
        assert await lorikeet.json("tenant", "list") == []
    code, out, err = await lorikeet("tenant", "list")
    assert (code, out, err.startswith(f"lorikeet: no server runs for {tmp_path}: start it")) == (3, "", True)


async def test_the_lock_file_of_a_killed_server_is_not_trusted(
    server: AdminServer, lorikeet: Cli, tmp_path: Path
) -> None:
    del lorikeet.environ["LORIKEET_PORT"]
    # The pid is of a process that lives, as after the kernel gave a dead one's number away.
    (tmp_path / "serve.lock").write_text(f"pid {os.getpid()} at {server.url}\n")
    code, _, err = await lorikeet("tenant", "list")
    assert (code, err.startswith("lorikeet: no server runs for ")) == (3, True)


async def test_an_explicit_address_goes_before_the_lock(server: AdminServer, lorikeet: Cli, tmp_path: Path) -> None:
    with data_folder_lock(tmp_path, "http://127.0.0.1:1"):
        assert await lorikeet.json("tenant", "list") == []
        code, _, _ = await lorikeet("tenant", "list", LORIKEET_PORT="")
        assert code == 3, "an empty setting is none"
