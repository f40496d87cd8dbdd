"""The drivers that speak to replicas: our own engine's, and those of servers of other makers. Names alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Driver = Literal["lorikeet", "openai", "llamacpp", "vllm", "sglang", "tgi", "ollama", "kserve", "lorikeet-gateway"]
"""The kinds of replicas that gateways can speak to. lorikeet: our own engine. openai: any server with OpenAI's chat
completions. llamacpp: llama.cpp's own server.
vllm: vLLM's server, or one with its fields. sglang, tgi, ollama: the servers of these names, by their own protocols.
kserve: Triton with the generate extension of the Open Inference Protocol. lorikeet-gateway: the gateway of another
Lorikeet."""

OWN_DRIVER: Driver = "lorikeet"
DRIVERS: tuple[Driver, ...] = get_args(Driver)
LOADING: frozenset[Driver] = frozenset({"vllm", "sglang"})
"""Drivers whose servers load adapters from a folder that they can read, on a request of the gateway."""

UPLOADING: frozenset[Driver] = frozenset({"ollama"})
"""Drivers whose servers receive adapters over HTTP, and keep them."""

PRELOADED: frozenset[Driver] = frozenset({"llamacpp", "kserve"})
"""Drivers whose servers have only the adapters with which they were started, or that their operator gave them."""

SEPARATING: frozenset[Driver] = frozenset({"vllm", "sglang"})
"""Drivers whose servers keep a separate prompt cache for each tenant, in the versions that were tested."""

PROGRAMS: Mapping[Driver, str] = {
    "llamacpp": "llama.cpp's llama-server: put it on the PATH of the agent, name it in LORIKEET_LLAMA_SERVER, or "
    "install the Python package xllamacpp beside Lorikeet",
    "vllm": "vLLM's command vllm: put it on the PATH of the agent, or name it in LORIKEET_VLLM",
}
"""The drivers whose servers agents can start, each with what a host needs for that."""
