"""Replicas say so if Ray is not installed, or is another version than the cluster's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.agent.conftest import host as host
from tests.gateway.agent.site import Host
from tests.installation.waiting import until

ABSENT = "raise ImportError(\"No module named 'ray'\")"
TOO_NEW = """
def init(**options):
    raise RuntimeError("Version mismatch: The cluster was started with: Ray: 2.50.0. This process with: Ray: 9.9.9.")
def remote(kind): return kind
"""


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"__init__.py": ABSENT}, "Ray is not installed (No module named 'ray'): pip install 'lorikeet-serving[ray]'"),
        (
            {
                "__init__.py": TOO_NEW,
                "exceptions.py": "class RayError(Exception): pass\nActorDiedError = ActorUnavailableError = RayError",
                "util/__init__.py": "",
                "util/scheduling_strategies.py": "NodeAffinitySchedulingStrategy = None",
            },
            "the Ray cluster (auto) cannot be reached: Version mismatch: The cluster was started with: Ray: 2.50.0.",
        ),
    ],
    ids=["absent", "another version"],
)
async def test_the_reason_is_shown_at_replicas(host: Host, tmp_path: Path, files: dict[str, str], why: str) -> None:
    """A package of the name `ray` stands where the agent's driver finds it first."""
    for name, text in files.items():
        path = tmp_path / "ray" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host.variables |= {"LORIKEET_PLACEMENT": "ray", "PYTHONPATH": str(tmp_path)}
    await host.pool(host.model())
    host.agent()

    async def says() -> bool:
        return any(row.state == "starting" and row.why.startswith(why) for row in await host.replicas())

    await until(says, host.log)
