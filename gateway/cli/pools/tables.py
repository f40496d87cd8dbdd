"""Prints pools, replicas and hosts as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.output import print_table, utc
from gateway.cli.pools.autoscaling import scaling_in_words


def hosts_in_words(pool: dict[str, Any]) -> str:
    """Return the labels of the hosts on which replicas of a pool start."""
    wanted = [f"{name}={value}" for name, value in sorted(pool["placement"].items())]
    excluded = [f"not {name}={value}" for name, values in sorted(pool["exclusion"].items()) for value in values]
    return " ".join(wanted + excluded) or "any"


def print_pool(pool: dict[str, Any], names: Mapping[str, str]) -> None:
    """Print the facts of a pool, then its revisions and replicas. names: the names of projects by their ids."""
    replica_bytes, grants = pool["replica_bytes"], pool["grants"]
    serving = next((each for each in pool["revisions"] if each["revision"] == pool["revision"]), pool)
    facts = [
        ("pool", pool["name"]),
        ("id", pool["id"]),
        ("state", ": ".join(filter(None, (pool["state"], pool["why"])))),
        ("engine", serving["engine"]),
        ("model", serving["model"]),
        ("settings", _settings(serving)),
        ("replicas", f"{pool['num_ready']} ready of {pool['num_wanted']} wanted"),
        *_scaling(pool),
        ("hosts", hosts_in_words(pool)),
        ("memory", "" if replica_bytes is None else f"{size_text(replica_bytes)} a replica, by the estimate"),
        ("revision", _revision(pool)),
        ("access", " ".join([pool["access"], *(_grantee(each, names) for each in grants)])),
        ("adapters", pool["num_adapters"]),
        *([("key", f"...{pool['key_hint']}" if pool["key_hint"] else "set")] if pool["key_hint"] is not None else []),
    ]
    for name, value in facts:
        print(f"{name.ljust(8)}  {'-' if value == '' else value}")
    print()
    revisions = [
        (
            each["revision"],
            each["state"],
            each["engine"],
            each["model"],
            _settings(each),
            (each["base_digest"] or "")[:12],
            utc(each["created_at"]),
            each["why"],
        )
        for each in pool["revisions"]
    ]
    print_table(("REVISION", "STATE", "ENGINE", "MODEL", "SETTINGS", "BASE", "CREATED", "WHY"), revisions)
    print()
    print_replicas(pool["replicas"])
    print_servers(pool["replicas"])


def _scaling(pool: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how the number of replicas follows the load, the last change, and what comes next."""
    scaling = pool["scaling"]
    if scaling is None:
        return []
    last = f"{utc(scaling['changed_at'])}: {scaling['why']}" if scaling["changed_at"] else ""
    return [("scaling", scaling_in_words(pool)), ("changed", last), ("outlook", scaling["outlook"] or "")]


def print_replicas(replicas: Sequence[dict[str, Any]]) -> None:
    """Print replicas as a table."""
    rows = [
        (
            each["id"],
            each["pool"],
            each["revision"],
            each["state"] + " (to be replaced)" * each["replace"],
            each["host"] or ("" if each["host_id"] else "elsewhere"),
            each["gpu"],
            utc(each["since"]),
            each["num_failures"] or "",
            each["address"],
            each["why"],
        )
        for each in replicas
    ]
    header = ("REPLICA", "POOL", "REVISION", "STATE", "HOST", "GPU", "SINCE", "FAILURES", "ADDRESS", "WHY")
    print_table(header, rows)


def print_servers(replicas: Sequence[dict[str, Any]]) -> None:
    """Print the abilities of the servers of other makers among replicas, if there are any."""
    rows = [
        (
            each["id"],
            server["version"] or "it says none",
            "its own protocol" if server["is_tried_version"] else "a generic protocol: this version was not tried",
            _adapters(server),
            "one for each tenant" if server["separates_caches"] else "shared by tenants, or not known",
            server["breaker"],
        )
        for each in replicas
        if (server := each["server"]) is not None
    ]
    if rows:
        print()
        print_table(("REPLICA", "VERSION", "ASKED BY", "ADAPTERS", "PROMPT CACHE", "BREAKER"), rows)


def _adapters(server: dict[str, Any]) -> str:
    if not server["has_adapters"]:
        return "none"
    return "yes" if server["is_tried_version"] else "each once a probe has shown it"


def print_hosts(hosts: Sequence[dict[str, Any]]) -> None:
    """Print hosts as a table."""
    rows = [
        (
            each["name"],
            ("alive" if each["is_alive"] else "no agent")
            + (", drained" if each["is_drained"] else "")
            + (", Ray cluster" if each["placement"] == "ray" else ""),
            each["num_processors"] + sum(node["num_processors"] for node in each["nodes"]),
            f"{size_text(each['taken_bytes'])} of {size_text(each['memory_bytes'] + _memory_of_nodes(each))}",
            ", ".join(f"{size_text(gpu['taken_bytes'])} of {size_text(gpu['memory_bytes'])}" for gpu in each["gpus"]),
            each["num_replicas"],
            " ".join(each["programs"]),
            each["id"],
        )
        for each in hosts
    ]
    print_table(("HOST", "STATE", "PROCESSORS", "MEMORY TAKEN", "GPU MEMORY TAKEN", "REPLICAS", "STARTS", "ID"), rows)


def _memory_of_nodes(host: dict[str, Any]) -> int:
    return sum(node["memory_bytes"] for node in host["nodes"])


def print_nodes(nodes: Sequence[dict[str, Any]]) -> None:
    """Print the machines of a cluster."""
    rows = [
        (
            each["name"],
            each["address"],
            each["num_processors"],
            size_text(each["memory_bytes"]),
            each["num_gpus"],
            each["num_replicas"],
            " ".join(f"{name}={value}" for name, value in sorted(each["labels"].items())),
        )
        for each in nodes
    ]
    print_table(("NODE", "ADDRESS", "PROCESSORS", "MEMORY", "GPUS", "REPLICAS", "LABELS"), rows)


def _grantee(grant: dict[str, Any], names: Mapping[str, str]) -> str:
    """Return the name of the project that may use a pool, or the id of the organization of which every project may."""
    project_id = grant["project_id"]
    return grant["organization_id"] if project_id is None else names.get(project_id, project_id)


def revisions_in_short(pool: dict[str, Any]) -> str:
    """Return the revision that serves, and the one that is to take its place."""
    serving, wanted = pool["revision"], pool["wanted_revision"]
    return str(wanted) if serving in (None, wanted) else f"{serving} -> {wanted}"


def _settings(revision: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(revision["settings"].items()))


def size_text(num_bytes: int) -> str:
    """Return a number of bytes in GiB, or in MiB where that is less than one."""
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes >> 20} MiB"


def _revision(pool: dict[str, Any]) -> str:
    serving, wanted = pool["revision"], pool["wanted_revision"]
    if serving == wanted:
        return str(serving)
    if pool["state"] == "failed" and serving is None:
        return f"{wanted} failed, none serves"
    how = f" ({pool['rollout']})" if pool["rollout"] else ""
    return f"{wanted} is on its way{how}, {'none serves yet' if serving is None else f'{serving} serves'}"
