"""The yardstick of the engine in the same run: transformers' `generate` over a static batch of the base model.

It lives in a process of its own, so that neither side's threads are in the other's way while it waits for its turn.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from types import TracebackType

import torch

from engine.config import EngineConfig
from engine.hardware import num_threads, resolve_device, resolve_dtype


class TransformersProcess:
    """transformers in a process of its own, used as a context. Greedy, with the engine's dtype and threads."""

    def __init__(self, config: EngineConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(config, remote), daemon=True)

    def __enter__(self) -> TransformersProcess:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()

    def tokens_per_s(self, prompts: list[list[int]], new_tokens: int) -> float:
        """Return the output tokens per second, the prompts' time included. All prompts have one length."""
        self._connection.send((prompts, new_tokens))
        rate: float = self._connection.recv()
        return rate


def _serve(config: EngineConfig, connection: Connection) -> None:
    """Serve prompts in a process of its own, until that is ended."""
    from transformers import AutoModelForCausalLM  # takes seconds to import, and only this process needs it

    device = resolve_device(config.device)
    if device.type == "cpu":
        torch.set_num_threads(num_threads(config.num_threads))
    dtype = resolve_dtype(config.dtype, device)
    model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=dtype).to(device).eval()
    while True:
        prompts, new_tokens = connection.recv()
        ids = torch.tensor(prompts, device=device)
        start_s = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
        )
        connection.send(len(prompts) * new_tokens / (time.perf_counter() - start_s))
