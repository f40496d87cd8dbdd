"""Settings of hosts: the addresses of their engines, the servers that agents start, and how replicas come and go."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.settings.clients import ClientSettings
from gateway.settings.listening import MAX_PORT


class HostSettings(ClientSettings, frozen=True, kw_only=True):
    """The settings of `ClientSettings`, and those of hosts and replicas."""

    link_address: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]*$",
            description="Address or name by which gateways on other machines reach the engines of this host, e.g. "
            "`10.0.0.5`. Their connections are encrypted, and only hosts that joined can open them (unset: engines "
            "serve the gateways of this machine alone).",
        ),
    ] = ""
    link_ports: Annotated[
        str,
        Meta(
            pattern=r"^\d{1,5}-\d{1,5}$",
            description="First and last TCP port that engines listen on where LORIKEET_LINK_ADDRESS is set, or "
            "LORIKEET_PLACEMENT is not `local`.",
        ),
    ] = "7400-7499"
    placement: Annotated[
        Literal["local", "ray"],
        Meta(
            description="Launcher of engines: `local` starts engines on the agent's own host, `ray` on the nodes of a "
            "Ray cluster, of which the agent's host has to be one."
        ),
    ] = "local"
    ray_address: Annotated[
        str,
        Meta(
            description="Address of the Ray cluster with LORIKEET_PLACEMENT=ray, e.g. `10.0.0.5:6379` (`auto`: the "
            "cluster of the node that runs on the agent's host)."
        ),
    ] = "auto"
    llama_server: Annotated[
        str,
        Meta(
            description="Program of llama.cpp's server that the agent starts for pools of `llamacpp` without a URL "
            "(unset: `llama-server` on the PATH, else the Python package `xllamacpp`)."
        ),
    ] = ""
    vllm: Annotated[
        str,
        Meta(
            description="Program of vLLM that the agent starts for pools of `vllm` without a URL (unset: `vllm` on the "
            "PATH)."
        ),
    ] = ""
    cold_start_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds that a request waits for the first replica of a pool that starts one when requests "
            "come. Then it gets 503 with the time after which to try again.",
        ),
    ] = 60.0
    replica_drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds that running requests get to finish on a replica that is drained or replaced, while "
            "other replicas serve.",
        ),
    ] = 900.0
    replica_start_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds within which the engine of a replica must answer after its start. An engine that does "
            "not is ended, and the replica fails.",
        ),
    ] = 1800.0
    unattended_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=60 * 24 * 365,
            description="Minutes after which an engine of a pool ends by itself while neither an agent nor a gateway "
            "is connected to it (0: never).",
        ),
    ] = 10.0

    @property
    def has_link(self) -> bool:
        """True where this host's engines listen on TCP, for gateways of other machines."""
        return bool(self.link_address) or self.placement != "local"

    @property
    def engine_ports(self) -> range:
        """The ports of link_ports.

        Raises ValueError: when the text is no range of ports; `load_settings` turns the error into BadSetting.
        """
        first, last = map(int, self.link_ports.split("-"))
        if not 0 < first <= last <= MAX_PORT:
            raise ValueError(f"Expected the first and the last of some ports between 1 and {MAX_PORT}, as 7400-7499")
        return range(first, last + 1)
