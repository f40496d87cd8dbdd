"""What the engine is compared with in the same run: transformers' `generate` over a static batch of the base model."""

from __future__ import annotations

import time

import torch

from engine.config import EngineConfig
from engine.setup import resolve_device, resolve_dtype


class Yardstick:
    """Greedy, in the engine's dtype and with its threads. All prompts of a batch have one length."""

    def __init__(self, config: EngineConfig) -> None:
        from transformers import AutoModelForCausalLM  # takes seconds to import, and most scenarios need none of it

        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, device)
        self._model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=dtype).to(device).eval()

    def tokens_per_s(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Output tokens per second, the prompts' time included."""
        ids = torch.tensor(prompts, device=self._model.device)
        start_s = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
        )
        return len(prompts) * new_tokens / (time.perf_counter() - start_s)
