"""The driver of another Lorikeet's gateway: its completions, with token ids where the model's tokenizer is known here.

All requests of a pool are one tenant there, that of the pool's key, and share that tenant's cache: it takes no salt.
Adapters there have names of that tenant, and are not offered here.
"""

from __future__ import annotations

from gateway.backends.foreign.drivers.vllm import VllmDriver


class LorikeetDriver(VllmDriver):
    """The `Driver` of another Lorikeet, which has vLLM's fields but for the salt, and refuses unknown fields."""

    separates_caches = False
    tested = None
