"""A start that is refused says why in one line, and a start leaves behind what the next one needs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from engine.prepare.folder import NOTE_NAME, SourceNote, make_folder
from gateway.agent.model import ModelNotPrepared, prepare_model
from gateway.cli import main
from gateway.db.adapters.adapters import list_adapters, remove_adapter
from gateway.db.billing.prices import list_versions
from gateway.db.experiments.experiments import delete_draft, list_experiments
from gateway.db.experiments.metrics import list_metrics
from gateway.db.organization.audit import AuditFilter, list_audit, verify
from gateway.db.organization.keys import find_usable_key, revoke_key
from gateway.db.organization.logins import find_credentials
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project, find_project
from gateway.db.organization.users import remove_user
from gateway.db.pool import Database
from gateway.domain.experiments.definition import check_definition
from gateway.domain.tenancy.keys import parse_key
from gateway.serve import second_pool
from gateway.serve.banner import banner, curl_line
from gateway.serve.bootstrap import (
    ADMIN_EMAIL,
    DEMO_PRICES,
    ORGANIZATION,
    Access,
    BadOperatorKey,
    bootstrap,
    read_env_file,
)
from gateway.serve.commands import gateway_environ
from gateway.serve.listener import Listener, PortUnavailable, is_ready
from gateway.serve.lock import DataFolderInUse, data_folder_lock, make_data_folder
from gateway.serve.run import serve
from gateway.serve.stop import StopRequested, StopSignals
from gateway.settings import ENGINE_DEFAULTS, Settings, load_settings
from gateway.support.process import private_folder
from gateway.tenancy.passwords import Passwords
from tests.gateway.bases import BASE_DIGEST
from tests.modes import open_to_others
from tests.patience import PATIENCE_S


def test_a_second_start_on_the_same_data_folder_says_who_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=tmp_path, port=18999)
    with data_folder_lock(tmp_path, settings.base_url):
        assert serve(settings) == 1
    said = capsys.readouterr().err
    assert f"pid {os.getpid()}" in said and "http://127.0.0.1:18999" in said and said.count("\n") == 1


def test_the_lock_ends_with_its_holder_even_by_kill_9(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time; from gateway.serve.lock import data_folder_lock\n"
        "with data_folder_lock(pathlib.Path(sys.argv[1]), 'here'): print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        with pytest.raises(DataFolderInUse, match=f"pid {holder.pid} at here"), data_folder_lock(tmp_path, "there"):
            pass
        holder.kill()
    with data_folder_lock(tmp_path, "there"):
        pass


def test_a_port_in_use_is_one_line_that_names_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(Settings(data_dir=tmp_path, port=port)) == 1
    said = capsys.readouterr().err
    assert f"port {port}" in said and "LORIKEET_PORT" in said and said.count("\n") == 1


def test_a_reserved_port_refuses_until_it_is_listened_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listener = Listener("127.0.0.1", port)
    try:
        assert not is_ready(f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        listener.listen()
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        with pytest.raises(PortUnavailable):
            Listener("127.0.0.1", port)
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("model", "why"),
    [("nowhere", "neither `demo`"), ("{folder}", "exactly one .gguf"), ("{folder}/notes.txt", "not a .gguf file")],
)
def test_a_model_that_cannot_be_used_is_refused_by_name(tmp_path: Path, model: str, why: str) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    settings = Settings(data_dir=tmp_path / "data", model=model.format(folder=tmp_path))
    with pytest.raises(ModelNotPrepared, match="LORIKEET_MODEL=.*" + why):
        prepare_model(settings)


def test_a_model_folder_without_its_tokenizer_is_refused_naming_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotPrepared, match=r"lacks config.json, tokenizer.json"):
        prepare_model(Settings(data_dir=tmp_path / "data", model=str(tmp_path)))


async def test_a_first_start_makes_keys_and_demo_and_a_second_one_changes_nothing(
    empty_dsn: str, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path, port=8123)
    access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    assert settings.operator_key_path.read_text().strip() == access.operator_key
    assert read_env_file(settings.demo_env_path) == {
        "OPENAI_BASE_URL": "http://127.0.0.1:8123/v1",
        "OPENAI_API_KEY": access.tenant_keys["acme"],
        "GLOBEX_API_KEY": access.tenant_keys["globex"],
        "LORIKEET_ADMIN_KEY": access.operator_key,
    }
    for path in (settings.operator_key_path, settings.demo_env_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    async with await Database.connect(empty_dsn, max_size=1) as database, database.acquire() as connection:
        organization = await ensure_organization(connection, ORGANIZATION)
        acme = await find_project(connection, organization.id, "acme")
        assert acme is not None
        assert sorted(row.name for row in await list_adapters(connection, acme.id)) == ["json", "pirate"]
        parsed = parse_key(access.tenant_keys["acme"])
        assert parsed is not None
        key = await find_usable_key(connection, parsed.sha256)
        assert key is not None and key.project_id == acme.id and "inference" in key.scopes

        events = await list_audit(connection, organization.id, AuditFilter(), after=None, limit=100)
        assert Counter(row.event for row in events) == {
            "admin_api_key.created": 1,
            "user.added": 1,
            "prices.set": 1,
            "project.created": 2,
            "adapter.created": 3,
            "api_key.created": 2,
            "metric.created": 1,
            "experiment.created": 1,
        }
        assert {(row.actor_kind, row.actor_id) for row in events} == {("system", "bootstrap")}
        assert (await verify(connection, organization.id)).broken is None

        await remove_adapter(connection, acme.id, "json")
        await revoke_key(connection, acme.id, key.id)
        assert await bootstrap(empty_dsn, settings, BASE_DIGEST) == msgspec.structs.replace(access, new_password=None)
        assert await list_audit(connection, organization.id, AuditFilter(), after=None, limit=100) == events
        assert [row.name for row in await list_adapters(connection, acme.id)] == ["pirate"]
        (prices,) = await list_versions(connection, organization.id)
        assert prices.version.entries == (DEMO_PRICES,) and "  prices  " in banner(settings, access)
        assert await find_usable_key(connection, parsed.sha256) is None, "a revoked key does not come back"


async def test_the_demos_experiment_is_a_valid_draft_over_adapters_that_exist_and_does_not_come_back(
    empty_dsn: str, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    await bootstrap(empty_dsn, settings, BASE_DIGEST)
    async with await Database.connect(empty_dsn, max_size=1) as database, database.acquire() as connection:
        organization = await ensure_organization(connection, ORGANIZATION)
        acme = await find_project(connection, organization.id, "acme")
        assert acme is not None
        (draft,) = await list_experiments(connection, acme.id, after=None, limit=10)
        assert (draft.name, draft.model, draft.state) == ("tone", "tone", "draft")
        metrics = [metric.name for metric in await list_metrics(connection, acme.id)]
        check_definition(draft.definition, metrics)
        adapters = {f"{settings.model_name}:{row.name}" for row in await list_adapters(connection, acme.id)}
        assert {arm.target.model for arm in draft.definition.arms} == adapters
        await delete_draft(connection, draft.id)
        await bootstrap(empty_dsn, settings, BASE_DIGEST)
        assert await list_experiments(connection, acme.id, after=None, limit=10) == []


async def test_the_banner_of_two_demo_pools_names_both(empty_dsn: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    two = banner(settings, access, num_demo_pools=2).splitlines()
    assert sum(second_pool.NAME in line for line in two) == len(access.tenant_keys), "all tenants may use it"
    assert sum(f"{second_pool.NAME}:{second_pool.ADAPTER}" in line for line in two) == 1, "one has an adapter there"
    assert second_pool.NAME not in banner(settings, access)
    assert "computes in bfloat16 on cpu" in banner(settings, access, computes="bfloat16 on cpu").splitlines()[3]
    assert "computes" not in banner(settings, access)


async def test_the_demo_sets_no_prices_where_somebody_would_have_to_pay_them(empty_dsn: str, tmp_path: Path) -> None:
    await bootstrap(empty_dsn, Settings(data_dir=tmp_path, model="some/model"), BASE_DIGEST)
    async with await Database.connect(empty_dsn, max_size=1) as database, database.acquire() as connection:
        organization = await ensure_organization(connection, ORGANIZATION)
        await create_project(connection, organization.id, "customer")
        settings = Settings(data_dir=tmp_path)
        access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
        assert await list_versions(connection, organization.id) == []
        assert access.tenant_keys and "  prices  " not in banner(settings, access)


async def test_a_first_start_makes_somebody_who_can_sign_in_and_never_again(empty_dsn: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, model="some/model")
    access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    assert access.new_password is not None and len(access.new_password) >= 20
    path = settings.admin_login_path
    assert read_env_file(path) == {"email": ADMIN_EMAIL, "password": access.new_password}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert f"{settings.base_url}/admin/" in banner(settings, access) and access.new_password in banner(settings, access)
    again = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    assert again.new_password is None
    assert access.new_password not in banner(settings, again) and str(path) in banner(settings, again)

    async with await Database.connect(empty_dsn, max_size=1) as database, database.acquire() as connection:
        person = await find_credentials(connection, ADMIN_EMAIL)
        assert person is not None and person.role == "owner"
        assert await Passwords().matches(person.password_hash, access.new_password)
        await remove_user(connection, person.organization_id, person.id)
        await bootstrap(empty_dsn, settings, BASE_DIGEST)
        assert await find_credentials(connection, ADMIN_EMAIL) is None, "who was removed does not come back"


async def test_the_first_password_may_be_a_setting(empty_dsn: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, model="some/model", admin_password="a password of mine")
    access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    assert not settings.admin_login_path.exists() and "a password of mine" not in banner(settings, access)
    async with await Database.connect(empty_dsn, max_size=1) as database, database.acquire() as connection:
        person = await find_credentials(connection, ADMIN_EMAIL)
    assert person is not None and await Passwords().matches(person.password_hash, "a password of mine")


async def test_without_the_demo_only_the_operator_gets_a_key(empty_dsn: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, model="some/model")
    access = await bootstrap(empty_dsn, settings, BASE_DIGEST)
    assert access.tenant_keys == {} and not settings.demo_env_path.exists()
    assert "lorikeet tenant create" in banner(settings, access)
    with pytest.raises(BadOperatorKey, match="LORIKEET_ADMIN_KEY"):
        await bootstrap(empty_dsn, Settings(data_dir=tmp_path, model="some/model", admin_key="secret"), BASE_DIGEST)


def test_the_curl_line_survives_a_shell(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    words = shlex.split(curl_line(settings, Access("operator", {"acme": "sk-lk-x", "globex": "sk-lk-y"})))
    assert "Authorization: Bearer sk-lk-x" in words
    assert json.loads(words[-1])["model"] == "smollm2-135m-instruct:pirate"


def test_a_gateway_reads_back_the_settings_it_was_given(tmp_path: Path) -> None:
    engine = msgspec.structs.replace(ENGINE_DEFAULTS, kv_cache_bytes=512 << 20)
    settings = Settings(data_dir=tmp_path, engine=engine, drain_seconds=1.5, admin_key="k", port=8081)
    environ = gateway_environ({"LORIKEET_PORT": "1", "PATH": "/bin"}, settings, tmp_path / "model", "postgresql://x")
    assert environ["PATH"] == "/bin" and "LORIKEET_ADMIN_KEY" not in environ
    read = load_settings(environ)
    assert read.model == str(tmp_path / "model") and read.database_url == "postgresql://x"
    for field in ("data_dir", "model_name", "engine", "drain_seconds", "port"):
        assert getattr(read, field) == getattr(settings, field)


def test_a_first_signal_interrupts_a_step_and_a_second_asks_for_haste() -> None:
    with StopSignals() as stop:
        with pytest.raises(StopRequested), stop.interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested and not stop.forced
        with pytest.raises(StopRequested), stop.interrupts():
            raise AssertionError("no further step begins")
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.forced


def model_folder(folder: Path) -> Path:
    """Return the folder of a model that the preparation accepts as it is."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    config |= {"intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    return model


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str) -> None:
    (tmp_path / "file").write_text("")
    assert serve(Settings(data_dir=Path(f"{tmp_path}/file{below}"), port=18999)) == 1
    said = capsys.readouterr().err
    assert f"LORIKEET_DATA_DIR={tmp_path}/file{below}: " in said and said.count("\n") == 1


def test_a_database_out_of_reach_is_named_without_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe, socket.create_server(("127.0.0.1", 0)) as free:
        port, closed = free.getsockname()[1], probe.getsockname()[1]
    url = f"postgresql://me:hidden@127.0.0.1:{closed}/lorikeet"
    settings = Settings(data_dir=tmp_path / "data", port=port, model=str(model_folder(tmp_path)), database_url=url)
    assert serve(settings) == 1
    said = capsys.readouterr().err
    assert "error: DATABASE_URL: the database cannot be reached" in said.splitlines()[-1] and "hidden" not in said


@pytest.mark.parametrize("count", ["0", "65", "many"])
def test_a_number_of_gateways_out_of_bounds_is_wrong_usage(capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--gateways", count])
    assert ended.value.code == 2
    assert f"--gateways: must be a whole number from 1 to 64, not '{count}'" in capsys.readouterr().err


def test_an_interrupt_while_modules_load_is_no_traceback(tmp_path: Path) -> None:
    # The handler is set anew: a child of a background job starts with the signal ignored.
    interrupt = "signal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "argparse.py").write_text("import os, signal\n" + interrupt)
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    command = [sys.executable, "-m", "gateway.cli", "--help"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert answer.returncode == 130 and answer.stderr == ""


def test_a_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed = probe.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed}")
    said: list[str] = []
    with pytest.raises(ModelNotPrepared, match=r"^LORIKEET_MODEL=org/name: the Hugging Face hub cannot be reached$"):
        prepare_model(Settings(data_dir=tmp_path, model="org/name"), said.append)
    assert not any("Traceback" in line for line in said)


def test_an_interrupted_preparation_is_cleared_by_the_next_one_but_a_download_goes_on(tmp_path: Path) -> None:
    left = {"a.partial": None, "b.partial": SourceNote(1, "gguf", "x"), "c.partial": SourceNote(1, "hub", "o/n")}
    for name, note in left.items():
        (tmp_path / name).mkdir()
        if note is not None:
            (tmp_path / name / NOTE_NAME).write_bytes(msgspec.json.encode(note))
    out = tmp_path / "out"
    out.mkdir()
    note = SourceNote(1, "demo", "z")
    (out / NOTE_NAME).write_bytes(msgspec.json.encode(note))
    make_folder(note, out, lambda to: None, chat=False)
    assert [path.name for path in tmp_path.glob("*.partial")] == ["c.partial"]


def test_a_private_folder_made_by_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "run", os.geteuid(), os.getegid())
    assert private_folder(folder, os.geteuid(), os.getegid()) == folder
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="not a private folder"):
        private_folder(folder, os.geteuid(), os.getegid())


def test_a_start_closes_what_an_older_version_left_open_to_others(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    data_dir = tmp_path / "made" / "data"
    make_data_folder(data_dir)
    (data_dir / "adapters").mkdir(mode=0o755)
    (data_dir / "notes.txt").write_text("x")
    (data_dir / "notes.txt").chmod(0o644)
    (data_dir / "models").symlink_to(elsewhere)
    with data_folder_lock(data_dir, "http://127.0.0.1:1"):
        assert open_to_others(data_dir) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755, "it is not the data folder's"
    passable = 0o711 if os.geteuid() == 0 else 0o700  # root's database has a user of its own below
    assert {stat.S_IMODE(path.stat().st_mode) for path in (data_dir, data_dir.parent)} == {passable}
