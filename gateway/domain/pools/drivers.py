"""The drivers that speak to replicas: our own engine's, and those of servers of other makers. Names alone."""

from __future__ import annotations

from typing import Literal, get_args

Driver = Literal["lorikeet", "openai", "llamacpp", "vllm", "sglang", "tgi", "ollama", "lorikeet-gateway"]
"""lorikeet: our own engine. openai: any server with OpenAI's chat completions. llamacpp: llama.cpp's own server.
vllm: vLLM's server, or one with its fields. sglang, tgi, ollama: these servers, by their own ways. lorikeet-gateway:
the gateway of another Lorikeet."""

OWN_DRIVER: Driver = "lorikeet"
DRIVERS: tuple[Driver, ...] = get_args(Driver)
LOADING: frozenset[Driver] = frozenset({"vllm", "sglang"})
"""Drivers whose servers load adapters when they are told to, from a folder that they see."""

PRELOADED: frozenset[Driver] = frozenset({"llamacpp"})
"""Drivers whose servers have the adapters with which they were started."""
