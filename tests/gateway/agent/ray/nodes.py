"""A Ray cluster of several nodes on this machine, each with a data folder of its own, for tests that have Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from gateway.db.pool import Database
from gateway.db.pools.replicas import ReplicaRow, replace_replicas
from gateway.support.host import host_id
from tests.gateway.agent.site import Host
from tests.patience import PATIENCE_S

NO_RAY = "Ray is not installed: `make long-ray` installs it and runs these"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason=NO_RAY)

HEAD = "head"
OBJECT_STORE_BYTES = 80 << 20
FIRST_ADDRESS = 11
"""The first address of the nodes on the loopback: each has one of its own, the head the machine's."""

NODE_BYTES = 8 << 30
"""The memory that each node declares, in bytes: several run on a small machine."""


class Nodes:
    """The nodes of a cluster, the head first. folder: the folder of the nodes' data folders."""

    def __init__(self, folder: Path) -> None:
        self.address = ""
        self._folder = folder
        self._port = _free_port()
        self._options: dict[str, dict[str, Any]] = {}
        command = [sys.executable, "-m", "tests.gateway.agent.ray.cluster_main"]
        self._log = (folder / "cluster.log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            start_new_session=True,
            cwd=Path(__file__).parents[4],
        )
        self.start_head()

    def start_head(self) -> None:
        """Start a new head without state, at the address of the former head."""
        self._do("head", HEAD, {"num_cpus": 0, "gcs_server_port": self._port, "include_dashboard": False})

    def kill_head(self) -> None:
        """Kill the head, and lose its state."""
        self._do("kill", HEAD)

    def add(self, name: str, num_cpus: int = 2, **options: Any) -> None:
        """Start a node whose data folder is named after it and is kept when the node ends."""
        address = f"127.0.0.{FIRST_ADDRESS + len(self._options)}"
        self._options[name] = {"num_cpus": num_cpus, "node_ip_address": address, **options}
        self._do("add", name, self._options[name])

    def kill(self, name: str) -> None:
        """Kill a node's own processes; engines on it keep running."""
        self._do("kill", name)

    def await_loss(self) -> None:
        """Wait until the head has noticed the loss of killed nodes."""
        self._do("await loss", HEAD)

    def rejoin(self, name: str) -> None:
        """Start a node again after it, or its head, was killed."""
        self._do("kill", name)
        self._do("add", name, self._options[name])

    def data_dir(self, name: str) -> Path:
        """Return the data folder of a node."""
        return self._folder / name

    def close(self) -> None:
        """End all nodes."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        self._log.close()

    def _do(self, do: str, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        told = {"object_store_memory": OBJECT_STORE_BYTES, "memory": NODE_BYTES, **options}
        told["env_vars"] = {"LORIKEET_DATA_DIR": str(self.data_dir(name)), "RAY_USAGE_STATS_ENABLED": "0"}
        self._process.stdin.write(json.dumps({"do": do, "name": name, "options": told}) + "\n")
        self.address = self._process.stdout.readline().strip()
        assert self.address, (self._folder / "cluster.log").read_text()[-3000:]


class AutoscaledNodes:
    """A cluster of one node, to which Ray's autoscaler adds nodes when there is something to run; it removes idle
    nodes.

    Ray's fake provider of nodes cannot declare how much memory a node has: the autoscaler learns it from the first
    node.
    """

    def __init__(self, folder: Path, *, num_cpus: int, max_nodes: int) -> None:
        import ray

        port = _free_port()
        self.address = f"{ray.util.get_node_ip_address()}:{port}"
        resources = {"CPU": num_cpus, "object_store_memory": OBJECT_STORE_BYTES}
        kinds = {
            "worker": {"resources": resources, "node_config": {}, "min_workers": 1, "max_workers": max_nodes},
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        }
        config: dict[str, Any] = {
            "cluster_name": "tests",
            "provider": {
                "type": "fake_multinode",
                "gcs_address": self.address,
                "use_node_id_as_ip": True,  # nodes share their address
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
                "foreground_node_launch": True,
            },
            "available_node_types": kinds,
            "head_node_type": "ray.head.default",
            "max_workers": max_nodes,
            "upscaling_speed": 10,
            "idle_timeout_minutes": 0.1,
            "file_mounts_sync_continuously": False,
        }
        config |= {"auth": {}, "docker": {}, "file_mounts": {}}
        lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
        config |= {f"{name}_commands": [] for name in lists}
        config |= {name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")}
        folder.mkdir(parents=True)
        (folder / "autoscaler.yaml").write_text(json.dumps(config))
        environ = {"LORIKEET_DATA_DIR": str(folder / "data"), "RAY_USAGE_STATS_ENABLED": "0", "RAY_FAKE_CLUSTER": "1"}
        flags = ["--head", f"--port={port}", "--num-cpus=0", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        flags += ["--include-dashboard=false", f"--autoscaling-config={folder / 'autoscaler.yaml'}", "--block"]
        self._log = (folder / "ray.log").open("wb")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", *flags],
            env=os.environ | environ | {"AUTOSCALER_UPDATE_INTERVAL_S": "1"},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def count(self) -> int:
        """Return the number of nodes beside the head."""
        return int(_in_cluster(COUNT_NODES, self.address) or 1) - 1

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()


@contextmanager
def ray_nodes(*names: str, **options: Any) -> Iterator[Nodes]:
    """Give a cluster with these nodes beside its head, which is gone when the context is left."""
    folder = Path(tempfile.mkdtemp(prefix="lk-ray-"))
    nodes = Nodes(folder)
    try:
        for name in names:
            nodes.add(name, **options)
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RayHost(Host):
    """The host of an agent that has Ray place its engines."""

    def __init__(self, folder: Path, dsn: str, database: Database, nodes: Nodes | AutoscaledNodes) -> None:
        super().__init__(folder, dsn, database)
        self.nodes = nodes
        self.variables |= {"LORIKEET_PLACEMENT": "ray", "LORIKEET_RAY_ADDRESS": nodes.address}

    def pids_on(self, name: str) -> list[int]:
        """Return the process ids of this host's engines on a node."""
        assert isinstance(self.nodes, Nodes)
        folder = str(self.nodes.data_dir(name)).encode()
        return [pid for pid in self.pids() if folder in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def addresses_on(self, name: str) -> set[str]:
        """Return the addresses of this host's engines on a node."""
        words = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in self.pids_on(name)]
        return {each[each.index("--endpoint") + 1] for each in words}

    async def replace(self, row: ReplicaRow) -> None:
        """Mark a replica for replacement by another one."""
        async with self.database.acquire() as conn:
            await replace_replicas(conn, [row.id])

    @contextmanager
    def paused(self, pid: int) -> Iterator[None]:
        """Stop an engine's process with SIGSTOP until the context is left."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.go_on(pid)

    def _mark(self) -> str:
        return host_id(self.data_dir)

    def close(self) -> None:
        """End all engines, and the actors that hold resources of nodes, for the next host."""
        super().close()
        _in_cluster(END_ACTORS, self.nodes.address, f"lorikeet-{host_id(self.data_dir)}")


END_ACTORS = """
import ray, sys
ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False)
for name in ray.util.list_named_actors():
    ray.kill(ray.get_actor(name))
"""

COUNT_NODES = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
"""


def _in_cluster(program: str, *arguments: str) -> str:
    """Run a program as a client of a cluster; return what it prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S).stdout
