"""Services of the compose file and containers of the chart as processes of this machine, with their own variables.

Only places, ports and the model differ from the variables of the file and the chart: /data, /stores and the secrets are
folders of the test, and addresses are the loopback's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.deploy.gateways import inherited
from tests.installation.processes import free_port

LORIKEET = (sys.executable, "-m", "gateway.cli")
INNER = ("LORIKEET_MODEL", "LORIKEET_MODEL_NAME")


class Service(msgspec.Struct, frozen=True):
    """A container's command and variables, as its file has them."""

    command: list[str]
    """The words behind `lorikeet`."""
    variables: dict[str, str]


def of_compose(services: Mapping[str, Any], name: str, environ: Mapping[str, str]) -> Service:
    """Return a service of a compose file. environ: the variables with which `compose up` is called."""
    image, service = services[name]["image"], services[name]
    command = service.get("command") or (["agent", "--stop-engines"] if "engine" in image else ["gateway"])
    variables = {key: interpolated(value, environ) for key, value in service.get("environment", {}).items()}
    return Service(command, variables)


def interpolated(text: str, environ: Mapping[str, str]) -> str:
    """Return a value with its variables replaced, as Compose does. Raises KeyError: when a required variable is
    missing.
    """

    def value(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        return environ[name] if default is None else environ.get(name) or default

    return re.sub(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*)|:\?[^}]*)?\}", value, text)


def of_container(container: Mapping[str, Any]) -> Service:
    """Return the command and the variables of a container, with fields of the pod filled in for this machine."""
    variables: dict[str, str] = {}
    for each in container["env"]:
        if "value" in each:
            value = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], each["value"])
        elif "fieldRef" in each["valueFrom"]:
            value = {"status.podIP": "127.0.0.1"}[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            group, name = each["valueFrom"]["resourceFieldRef"]["resource"].split(".")
            value = container["resources"][group][name]
        variables[each["name"]] = value
    return Service(list(container["args"]), variables)


class Places(msgspec.Struct, frozen=True):
    """The folders and addresses that stand for those of containers."""

    folder: Path
    secrets: Path

    def environ(self, service: Service, pod: str = "shared") -> dict[str, str]:
        """Return the variables of a process. pod: the name of the pod, which has a data folder of its own."""
        moved = {
            "/run/secrets/lorikeet": str(self.secrets),
            "/run/secrets": str(self.secrets),
            "/stores": str(self.folder / "stores"),
            "/data": str(self.folder / pod),
            "/tmp/lorikeet": str(self.folder / pod),
        }
        found = {name: _moved(value, moved) for name, value in service.variables.items()}
        found.setdefault("LORIKEET_DATA_DIR", str(self.folder / pod))  # as the image has it
        if "LORIKEET_HOST" in found:
            found["LORIKEET_PORT"] = str(free_port())
            found["LORIKEET_METRICS_LISTEN"] = f"127.0.0.1:{free_port()}"
        if "LORIKEET_LINK_PORTS" in found:
            port = free_port()
            found["LORIKEET_LINK_PORTS"] = f"{port}-{port}"
        return inherited() | found


def _moved(value: str, places: Mapping[str, str]) -> str:
    """Return a path of a container as a path of this machine; any other value unchanged."""
    for here, there in places.items():
        if value == here or value.startswith(f"{here}/"):
            return there + value.removeprefix(here)
    return value


def write_secrets(folder: Path, secrets: Mapping[str, str], names: Iterable[str]) -> None:
    """Write a file for each secret of these names."""
    folder.mkdir(mode=0o700)
    for name in names:
        (folder / name).write_text(secrets[name])
