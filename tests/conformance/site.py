"""The server that suites use, and the tenants that suites need beyond the demo's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.serve.demo_experiment import NAME as EXPERIMENT
from tests.demo import demo_model_dir
from tests.e2e.installation import BASE, Installation

FEW_UNITS, ALL_UNITS = 200, 10_000
"""The number of units whose arms are compared: in usual runs, and with --full."""


class Site(msgspec.Struct, frozen=True):
    """The server and its keys."""

    url: str
    key: str
    """The key of a tenant without limits, which has the adapters `pirate` and `json`."""
    narrow_key: str
    """The key of a tenant that may have one request at a time."""
    broke_key: str
    """The key of a tenant whose budget is used up."""
    num_units: int = FEW_UNITS
    """The number of units of the demo's experiment whose arms are compared."""
    model: str = BASE
    """The base model."""

    def environ(self, model: str | None) -> dict[str, str]:
        """Return the variables by which scripts of suites find the site.

        model: the model to ask; None for the base.
        """
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": self.key,
            "CONFORMANCE_MODEL": model or self.model,
            "CONFORMANCE_BASE": self.model,
            "CONFORMANCE_NARROW_KEY": self.narrow_key,
            "CONFORMANCE_BROKE_KEY": self.broke_key,
            "CONFORMANCE_EXPERIMENT": EXPERIMENT,
            "CONFORMANCE_UNITS": str(self.num_units),
            "CONFORMANCE_WEIGHTS": str(demo_model_dir()),
            "HF_HUB_OFFLINE": "1",
        }


@contextmanager
def serving(data_dir: Path, *, num_units: int = 0) -> Iterator[Site]:
    """Give `lorikeet serve` over an empty folder, in fp32, so that its numbers can be compared with others'.

    num_units: the units of the demo's experiment, which is not started with 0.
    """
    installation = Installation(data_dir)
    installation.env |= {"LORIKEET_DTYPE": "float32", "LORIKEET_QUANTIZATION": "none"}
    installation.start()
    try:
        site = prepare(installation)
        if num_units:
            _cli(installation, "experiment", "start", EXPERIMENT, "--tenant", "acme")
        yield msgspec.structs.replace(site, num_units=num_units)
    finally:
        installation.stop()


def prepare(installation: Installation) -> Site:
    """Create the tenants in a running installation, and return its keys.

    The demo's tenants get to store completions.
    """
    _cli(installation, "tenant", "modify", "acme", "--store-days", "1", "--service-tiers", "default,flex,priority")
    narrow = _make_tenant(installation, "narrow")
    _cli(installation, "limit", "set", "--tenant", "narrow", "--unit", "concurrency", "--max", "1")
    broke = _make_tenant(installation, "broke")
    _cli(installation, "limit", "set", "--tenant", "broke", "--unit", "tokens", "--window", "month", "--max", "1")
    return Site(installation.url, installation.keys["OPENAI_API_KEY"], narrow, broke)


def _make_tenant(installation: Installation, name: str) -> str:
    """Make a tenant and return a key of the new tenant."""
    _cli(installation, "tenant", "create", name)
    key: str = json.loads(_cli(installation, "key", "create", "--tenant", name, "--json"))["key"]
    return key


def _cli(installation: Installation, *arguments: str) -> str:
    ended = installation.cli(*arguments)
    assert ended.returncode == 0, f"lorikeet {' '.join(arguments)}: {ended.stderr}"
    return ended.stdout
