"""A Ray cluster in a process of its own, which does what the lines on its stdin say, and answers each with its address.

Ray's cluster utility arranges what signals do to its process, and works in a main thread alone.

    {"do": "head" | "add" | "kill" | "await loss", "name": NAME, "options": {OPTION OF A NODE: VALUE}}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ray.cluster_utils import Cluster

PAUSE_S = 0.1


def main() -> None:
    """Execute the commands on stdin until it ends, then end all nodes."""
    answers = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    cluster, nodes = Cluster(), dict[str, Any]()
    for line in sys.stdin:
        asked = json.loads(line)
        match asked["do"], asked["name"]:
            case "head", name:
                cluster = Cluster()
                nodes[name] = cluster.add_node(**asked["options"])
            case "add", name:
                nodes[name] = cluster.add_node(**asked["options"])
            case "kill", name if name in nodes:
                nodes.pop(name).kill_all_processes(check_alive=False, allow_graceful=False)
            case "await loss", _:
                while sum(node["Alive"] for node in cluster.global_state.node_table()) > len(nodes):
                    time.sleep(PAUSE_S)
        os.write(answers, f"{cluster.address}\n".encode())
    for node in nodes.values():
        node.kill_all_processes(check_alive=False, allow_graceful=False)
    os._exit(0)


if __name__ == "__main__":
    main()
