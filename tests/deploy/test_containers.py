"""The Containerfile and the compose file: nothing privileged, no secret with a default, only settings that exist."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from deploy.release import LOCKS
from engine.version import VERSION
from gateway.settings import settings_table
from tests.deploy.balancers import program
from tests.documents import REPOSITORY

CONTAINERFILE = REPOSITORY / "deploy/image/Containerfile"
FOLDER = REPOSITORY / "deploy/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = sorted(name for name, service in SERVICES.items() if service["image"].startswith("lorikeet-"))
GATEWAYS = ("gateway1", "gateway2")


def variables(name: str) -> dict[str, str]:
    """Return the environment variables of a compose service."""
    return dict(SERVICES[name].get("environment", {}))


@pytest.mark.skipif(program("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([str(program("hadolint")), str(CONTAINERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_runs_as_nobody_under_an_init() -> None:
    stages = re.split(r"^FROM ", CONTAINERFILE.read_text(), flags=re.MULTILINE)[1:]
    images = {
        stage.split()[2]: stage for stage in stages if stage.startswith("base AS ") and stage.split()[2] != "build"
    }
    assert len(images) == 5
    for name, stage in images.items():
        assert "\nUSER 65532:65532\n" in stage and 'ENTRYPOINT ["tini", "--", "lorikeet"]' in stage, name
    assert f'image.version="{VERSION}"' in stages[0]


def test_images_are_made_of_the_files_of_a_release() -> None:
    named = set(re.findall(r"/dist/(requirements[\w-]*\.txt)", CONTAINERFILE.read_text()))
    assert named == set(LOCKS.values())


@pytest.mark.parametrize("name", OWN)
def test_a_service_of_ours_has_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "65532:65532" and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and not service.get("privileged")
    assert {"ports", "cap_add", "devices", "network_mode", "pid", "ipc"}.isdisjoint(service)


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_has_a_version(name: str) -> None:
    image = SERVICES[name]["image"]
    assert re.search(rf":(v?\d[\w.-]*|\$\{{IMAGE_VERSION:-{VERSION}\}})$", image), image


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_are_files_without_a_default(name: str) -> None:
    service = SERVICES[name]
    files = {value for key, value in variables(name).items() if key.endswith("_FILE")}
    given = {f"/run/secrets/{secret}" for secret in service.get("secrets", [])}
    assert files <= given
    told = {key for key in variables(name) if re.search(r"PASSWORD|SECRET|KEY|URL", key) and not key.endswith("_FILE")}
    assert told <= {"LORIKEET_PUBLIC_URL"}


def test_every_secret_is_drawn_by_the_script_or_asked_for() -> None:
    script = (FOLDER / "make_secrets.sh").read_text()
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
        assert re.search(rf"(draw|>|test -s) ?{name}\b", script), name


@pytest.mark.parametrize("name", OWN)
def test_variables_of_ours_are_settings(name: str) -> None:
    known = {row.name for row in settings_table()}
    assert {each.removesuffix("_FILE") for each in variables(name)} <= known


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_has_its_lame_duck_its_drain_and_15_seconds_more(name: str) -> None:
    found = variables(name)
    waits_s = int(found["LORIKEET_LAME_DUCK_SECONDS"]) + int(found["LORIKEET_DRAIN_SECONDS"])
    assert SERVICES[name]["stop_grace_period"] == f"{waits_s + 15}s"
