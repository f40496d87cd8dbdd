"""The balancers of `deploy/proxy`, each with the shipped file, in which only addresses and certificates are replaced.

Knows nothing about gateways.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import trustme

from tests.documents import REPOSITORY
from tests.installation.processes import ChildProcess, free_port

SHIPPED = REPOSITORY / "deploy/proxy"
FOLDER = REPOSITORY / "build/balancers/bin"
"""The folder into which `make long-upgrade` installs balancers."""

FILES = {"haproxy": "haproxy.cfg", "caddy": "Caddyfile", "envoy": "envoy.yaml"}
PORTS = (8081, 8082)
"""The ports of gateways that the shipped files name."""


def program(name: str) -> str | None:
    """Return the path of a balancer's program, or None where this machine has none."""
    return shutil.which(name, path=str(FOLDER)) or shutil.which(name) or shutil.which(name, path="/usr/sbin")


def configured(name: str, folder: Path, port: int, gateways: Sequence[int]) -> Path:
    """Return the shipped file of a balancer, written for these ports and a certificate of our own.

    Raises AssertionError: when the shipped file lacks a text that is to be replaced.
    """
    certificate = trustme.CA().issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "chain.pem"))
    replaced = {
        "haproxy": {":443 ssl": f"127.0.0.1:{port} ssl", "/etc/haproxy/lorikeet.pem": str(folder / "both.pem")},
        "caddy": {
            "\tgrace_period": "\tadmin off\n\tauto_https off\n\tgrace_period",
            "llm.example.com {": f"https://127.0.0.1:{port} {{\n\ttls {folder}/chain.pem {folder}/key.pem",
        },
        "envoy": {
            '"::", port_value: 443, ipv4_compat: true': f"127.0.0.1, port_value: {port}",
            "/etc/envoy/lorikeet.crt": str(folder / "chain.pem"),
            "/etc/envoy/lorikeet.key": str(folder / "key.pem"),
        },
    }[name]
    address = "address: 127.0.0.1, port_value: {}" if name == "envoy" else "127.0.0.1:{}"
    for shipped, own in zip(PORTS, gateways, strict=True):
        replaced[address.format(shipped)] = address.format(own)
    text = (SHIPPED / FILES[name]).read_text()
    for old, new in replaced.items():
        assert old in text, f"{FILES[name]} has no {old!r}"
        text = text.replace(old, new)
    path = folder / FILES[name]
    path.write_text(text)
    return path


def commands(name: str, found: str, path: Path) -> tuple[list[str], list[str]]:
    """Return the command that checks a balancer's file, and the one that runs it in the foreground."""
    if name == "haproxy":
        return [found, "-c", "-f", str(path)], [found, "-W", "-db", "-f", str(path)]
    if name == "caddy":
        adapted = ["--adapter", "caddyfile", "--config", str(path)]
        return [found, "validate", *adapted], [found, "run", *adapted]
    config = ["-c", str(path), "--log-level", "warning"]
    return [found, "--mode", "validate", *config], [found, "--concurrency", "1", "--use-dynamic-base-id", *config]


class Balancer(ChildProcess):
    """A balancer in front of gateways at some ports. Its own port takes TLS."""

    def __init__(self, name: str, folder: Path, gateways: Sequence[int]) -> None:
        found = program(name)
        assert found is not None
        folder.mkdir(mode=0o711)
        self.port = free_port()
        path = configured(name, folder, self.port, gateways)
        super().__init__(commands(name, found, path)[1], log=folder / f"{name}.log")
