"""The command line by itself: help everywhere, wrong usage and bad settings exit 2, and no start is slow."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from engine.version import VERSION
from gateway.cli import main
from gateway.cli.command import build_parser
from gateway.cli.errors import CommandFailed
from gateway.cli.server import processes
from gateway.cli.verbs import COMMANDS, Command
from gateway.db.pool import Database
from gateway.db.schema_files import schema_names
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings, settings_table
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S


def verbs(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield every command and subcommand with the parser of its arguments."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                yield from verbs(verb, (*path, name))


def test_every_verb_has_help_that_describes_it() -> None:
    found = dict(verbs(build_parser()))
    assert ("adapter", "add") in found
    for path, parser in found.items():
        text = parser.format_help()
        assert text.startswith(f"usage: {' '.join(('lorikeet', *path))}"), path
        assert text.split("\n\n")[1].strip().endswith("."), path


@pytest.mark.parametrize("path", [(), ("adapter",), ("adapter", "add")])
def test_help_is_printed(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*path, "--help"], {})
    assert left.value.code == 0
    assert capsys.readouterr().out == dict(verbs(build_parser()))[path].format_help()


@pytest.mark.parametrize("argv", [[], ["sing"], ["tenant"], ["key", "create"], ["serve", "--gateways", "0"]])
def test_wrong_usage_exits_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv, {})
    assert left.value.code == 2


def test_an_argument_that_is_no_text_exits_2_with_one_line() -> None:
    command = [sys.executable, "-m", "gateway.cli", "tenant", "create", b"\xff\xfe"]
    done = subprocess.run(command, env=os.environ | {"PYTHONUTF8": "1"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lorikeet: the argument '\\udcff\\udcfe' is not UTF-8 text\n"


SERVER = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "environ", "source"),
    [
        (("embed", "a", "--model", "m", "--url", SERVER, "--key", "sk-\xe9"), {}, "--key"),
        (("embed", "a", "--model", "m", "--url", SERVER, "--key", "sk-x\ny"), {}, "--key"),
        (("embed", "a", "--model", "m", "--url", SERVER), {"LORIKEET_API_KEY": "sk-\xe9"}, "LORIKEET_API_KEY"),
        (("user", "list"), {"LORIKEET_ADMIN_KEY": "sk-\xe9", "LORIKEET_URL": SERVER}, "LORIKEET_ADMIN_KEY"),
        (("user", "list"), {"LORIKEET_ADMIN_KEY": "sk-\xe9", "LORIKEET_PORT": "1"}, "LORIKEET_ADMIN_KEY"),
        (("file", "list", "--url", "http://[::1", "--key", "sk-x"), {}, "--url"),
        (("file", "list", "--url", "http://a:b", "--key", "sk-x"), {}, "--url"),
        (("file", "list", "--key", "sk-x"), {"LORIKEET_URL": "http://[::1"}, "LORIKEET_URL"),
    ],
)
def test_a_key_or_url_that_cannot_be_used_is_refused_by_its_source(
    words: tuple[str, ...], environ: dict[str, str], source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, {"LORIKEET_DATA_DIR": str(tmp_path)} | environ) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"lorikeet: {source}: ") and "sk-" not in err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"], {})
    assert (left.value.code, capsys.readouterr().out) == (0, f"lorikeet {VERSION}\n")


@pytest.mark.parametrize(
    "argv", [["serve"], ["gateway"], ["worker"], ["engine"], ["migrate"], ["model", "prepare"], ["tenant", "list"]]
)
def test_a_bad_setting_stops_every_verb_with_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv, {"LORIKEET_PROT": "1"}) == 2
    assert capsys.readouterr().err == "lorikeet: LORIKEET_PROT is not a setting; did you mean LORIKEET_PORT?\n"


def test_the_settings_are_listed_even_when_one_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"], {"LORIKEET_PROT": "1"}) == 0
    out = capsys.readouterr().out
    assert all(row.name in out and row.doc in out for row in settings_table())
    assert main(["settings", "--json"], {}) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [row.name for row in settings_table()]


def test_migrate_names_what_it_applied(empty_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DATABASE_URL": empty_dsn}
    assert main(["migrate", "--json"], environ) == 0
    assert json.loads(capsys.readouterr().out) == {"applied": list(schema_names())}
    assert main(["migrate"], environ) == 0
    assert capsys.readouterr().out == "the schema is up to date\n"


def test_migrate_leaves_a_later_schema_alone_where_it_is_told_to(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DATABASE_URL": dsn}

    async def execute(sql: str) -> None:
        conn = await asyncpg.connect(dsn)
        await conn.execute(sql)
        await conn.close()

    asyncio.run(execute("INSERT INTO schema_migrations (name, sha256) VALUES ('9999_later', 'x')"))
    assert main(["migrate"], environ) == 1
    assert "9999_later" in capsys.readouterr().err
    assert main(["migrate", "--allow-newer", "--json"], environ) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == {"applied": []} and "left as it is" in found.err
    # What is not merely later is refused all the same.
    asyncio.run(execute("DELETE FROM schema_migrations WHERE name = '0068_versions_of_parts'"))
    assert main(["migrate", "--allow-newer"], environ) == 1


def test_migrate_makes_the_operator_whom_settings_name_and_changes_nothing_the_second_time(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin-key", "generate"], {}) == 0
    key, password = capsys.readouterr().out.strip(), "correct horse battery"
    environ = {"DATABASE_URL": dsn, "LORIKEET_ADMIN_KEY": key, "LORIKEET_ADMIN_PASSWORD": password}
    assert [main(["migrate"], environ) for _ in range(2)] == [0, 0]

    async def made() -> tuple[list[bytes], list[str]]:
        conn = await asyncpg.connect(dsn)
        try:
            keys = await conn.fetch("SELECT sha256 FROM api_keys WHERE kind = 'admin'")
            return [row[0] for row in keys], [row[0] for row in await conn.fetch("SELECT email FROM users")]
        finally:
            await conn.close()

    assert asyncio.run(made()) == ([hashlib.sha256(key.encode()).digest()], ["admin@localhost"])
    assert main(["migrate"], environ | {"LORIKEET_ADMIN_KEY": "sk-wrong"}) == 1
    assert "LORIKEET_ADMIN_KEY is not an operator's key" in capsys.readouterr().err


def test_migrate_makes_the_first_pool_for_agents_once(dsn: str) -> None:
    environ = {"DATABASE_URL": dsn, "LORIKEET_MODEL": "org/first", "LORIKEET_MODEL_NAME": "first"}
    assert main(["migrate", "--first-pool", "2"], environ) == 0
    assert main(["migrate", "--first-pool", "3"], environ | {"LORIKEET_MODEL_NAME": "second"}) == 0

    async def pools() -> list[tuple[str, int, str, str]]:
        conn = await asyncpg.connect(dsn)
        try:
            found = await conn.fetch(
                "SELECT p.name, p.num_replicas, v.model, v.state FROM pools p JOIN pool_revisions v ON v.pool_id = p.id"
            )
            assert await conn.fetchval("SELECT count(*) FROM replicas") == 0
            return [tuple(row) for row in found]
        finally:
            await conn.close()

    assert asyncio.run(pools()) == [("first", 2, "org/first", "preparing")]


def test_migrate_without_a_database_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate"], {"LORIKEET_DATA_DIR": str(tmp_path)}) == 3
    assert capsys.readouterr().err.startswith(f"lorikeet: no database runs for {tmp_path}: start the server with")
    assert main(["migrate"], {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}) == 3
    assert capsys.readouterr().err.startswith("lorikeet: the database cannot be reached: ")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model_folder(tmp_path_factory.mktemp("model"))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


ENDED = "\n-- ended --\n"
ONE_AFTER_ANOTHER = f"""
import os, sys
from gateway.cli import main
verb, *dsns = sys.argv[1:]
for dsn in dsns:
    code = main([verb], {{**os.environ, "DATABASE_URL": dsn}})
    print(code, end={ENDED!r}, file=sys.stderr, flush=True)
"""
"""The source of a program that runs a command with one database after another, importing everything once."""


@pytest.mark.parametrize("verb", ["gateway", "serve", "worker", "migrate"])
def test_a_database_that_refuses_is_one_line_and_exit_1(
    verb: str, empty_dsn: str, model_dir: Path, tmp_path: Path
) -> None:
    wrong = {
        "no tables of Lorikeet": empty_dsn,
        "password authentication failed": re.sub(r":[^:@]+@", ":wrong@", empty_dsn),
        'database "nowhere" does not exist': urlsplit(empty_dsn)._replace(path="/nowhere").geturl(),
        "`sslmode` parameter must be one of": f"{empty_dsn}&sslmode=perhaps",
    }
    if verb != "gateway":  # these two make the tables
        del wrong["no tables of Lorikeet"]
    environ = {"LORIKEET_MODEL": str(model_dir), "LORIKEET_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, verb, *wrong.values()]
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    said = done.stderr.split(ENDED)
    assert len(said) == len(wrong) + 1, done.stderr
    for why, stderr in zip(wrong, said, strict=False):
        *_, last, code = stderr.splitlines()
        assert (code, why in last, "Traceback" in stderr) == ("1", True, False), stderr


def test_a_gateway_prepares_a_model_for_the_first_pool_and_for_one_that_its_machine_lacks(
    dsn: str, model_dir: Path, tmp_path: Path
) -> None:
    def prepared(model: str) -> Path | None:
        return processes._prepared_if_needed(Settings(data_dir=tmp_path / "data", model=model, database_url=dsn))

    with pytest.raises(CommandFailed, match="/nowhere"):
        prepared("/nowhere")
    asyncio.run(add_pool(dsn, "/models/of/another/host"))
    assert prepared("/nowhere") is None and (tmp_path / "data").is_dir()
    with pytest.raises(CommandFailed, match="/models/of/another/host"):
        prepared("/models/of/another/host")
    asyncio.run(add_pool(dsn, str(model_dir)))
    assert prepared(str(model_dir)) is None


async def add_pool(dsn: str, folder: str) -> None:
    async with await Database.connect(dsn, max_size=1) as database, database.transaction() as conn:
        digest = hashlib.sha256(folder.encode()).hexdigest()
        assert await make_pool(conn, f"p-{digest[:4]}", model=folder, folder=Path(folder), base_digest=digest)


def test_a_descriptor_that_is_no_socket_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "file").open("w") as file:
        assert main(["gateway", "--fd", str(file.fileno())], {}) == 1
        assert capsys.readouterr().err.startswith(f"lorikeet: --fd {file.fileno()} is not a socket")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from gateway.cli.command import build_parser; build_parser().format_help(); print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncpg", "httpx", "litestar", "numpy", "torch", "transformers", "uvicorn"} & set(modules)


def test_help_imports_no_package_of_the_commands() -> None:
    program = (
        "import sys; from gateway.cli.command import build_parser; build_parser('').format_help(); print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {f"gateway.cli.{command.room}" for command in COMMANDS} & set(modules)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_module_in_each_row_of_the_command_table_declares_the_command(command: Command) -> None:
    declared = commands(build_parser(command.name))
    assert command.name in declared
    assert declared == [name for name in commands(build_parser("")) if name in declared]


def commands(parser: argparse.ArgumentParser) -> list[str]:
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return list(verbs.choices)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m gateway.cli settings | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
