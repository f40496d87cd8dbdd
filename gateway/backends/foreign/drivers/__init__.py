"""The drivers of servers of other makers, each a small file with what is particular about its kind of server."""

from __future__ import annotations

from gateway.backends.foreign.driver import Driver, Pooled
from gateway.backends.foreign.drivers.kserve import KserveDriver
from gateway.backends.foreign.drivers.llamacpp import LlamaCppDriver
from gateway.backends.foreign.drivers.lorikeet import LorikeetDriver
from gateway.backends.foreign.drivers.ollama import OllamaDriver
from gateway.backends.foreign.drivers.openai import OpenAIDriver
from gateway.backends.foreign.drivers.sglang import SglangDriver
from gateway.backends.foreign.drivers.tgi import TgiDriver
from gateway.backends.foreign.drivers.vllm import VllmDriver
from gateway.domain.pools import drivers


def driver_of(name: drivers.Driver, pooled: Pooled) -> Driver:
    """Return the driver of this name for one revision of a pool."""
    match name:
        case "openai":
            return OpenAIDriver(pooled)
        case "vllm":
            return VllmDriver(pooled)
        case "llamacpp":
            return LlamaCppDriver(pooled)
        case "sglang":
            return SglangDriver(pooled)
        case "tgi":
            return TgiDriver(pooled)
        case "ollama":
            return OllamaDriver(pooled)
        case "kserve":
            return KserveDriver(pooled)
        case "lorikeet-gateway":
            return LorikeetDriver(pooled)
    raise AssertionError(f"no driver of servers of other makers: {name}")
