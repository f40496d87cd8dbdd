"""`python -m engine.bench`: output tokens per second of the engine without its socket, beside transformers in one run.

Both run in this process, in turn, on the same weights, prompts and lengths; the ratio is the figure to keep, since
machines differ and swing. Adapters are random, of one rank on all projections. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from adapters.store import AdapterStore
from engine.config import PROJECTIONS, EngineConfig, ModelConfig, load_model_config
from engine.mailbox import Drain, Mailbox
from engine.protocol import GenerateRequest, SamplingParams
from engine.setup import build_core, resolve_device, resolve_dtype

PROMPT_TOKENS = 65
NEW_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--adapters", type=int, nargs="+", default=[0, 3, 8], help="distinct adapters in the batch")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--repeat", type=int, default=2, help="the best of this many runs counts, for both sides")
    parser.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = load_model_config(args.model_dir)
        digests = list(random_adapters(Path(folder), model, max(args.adapters), args.rank))
        config = EngineConfig(
            model_dir=args.model_dir, adapter_store=str(Path(folder) / "store"), endpoint="", dtype=args.dtype
        )
        for row in rows(config, digests, args.streams, args.adapters, args.repeat):
            sys.stdout.write(json.dumps(row) + "\n" if args.json else table_line(row))
            sys.stdout.flush()


def rows(
    config: EngineConfig, digests: list[str], streams: list[int], adapters: list[int], repeat: int
) -> Iterator[dict[str, Any]]:
    yardstick = Yardstick(config)
    for num_streams in streams:
        reference = max(yardstick.tokens_per_s(num_streams) for _ in range(repeat))
        for num_adapters in adapters:
            ours = max(engine_tokens_per_s(config, num_streams, digests[:num_adapters]) for _ in range(repeat))
            yield {
                "streams": num_streams,
                "adapters": num_adapters,
                "tokens_per_s": round(ours, 1),
                "transformers_base_tokens_per_s": round(reference, 1),
                "ratio": round(ours / reference, 2),
            }


def engine_tokens_per_s(config: EngineConfig, num_streams: int, digests: list[str]) -> float:
    """All requests at once, adapters in turn (and the base, once, where adapters are few); loading is not timed."""
    with contextlib.closing(Mailbox()) as mailbox:
        core, _ = build_core(config, mailbox)
        for digest in digests:
            core.preload(digest)
        generator = torch.Generator().manual_seed(0)
        for i in range(num_streams):
            prompt = torch.randint(100, 10_000, (PROMPT_TOKENS,), generator=generator).tolist()
            sampling = SamplingParams(NEW_TOKENS, temperature=0.0, ignore_eos=True)
            adapter = digests[i % len(digests)] if digests else ""
            mailbox.command(GenerateRequest(f"r{i}", prompt, sampling, "bench", adapter=adapter))
        mailbox.command(Drain())
        start_s = time.perf_counter()
        core.run()
        return num_streams * NEW_TOKENS / (time.perf_counter() - start_s)


class Yardstick:
    """transformers' `generate` over a static batch of the base, greedy, the same lengths."""

    def __init__(self, config: EngineConfig) -> None:
        from transformers import AutoModelForCausalLM

        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, device)
        self._model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=dtype).to(device).eval()

    def tokens_per_s(self, num_streams: int) -> float:
        ids = torch.randint(100, 10_000, (num_streams, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
        ids = ids.to(self._model.device)
        start_s = time.perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        return num_streams * NEW_TOKENS / (time.perf_counter() - start_s)


def random_adapters(folder: Path, model: ModelConfig, count: int, rank: int) -> Iterator[str]:
    """Digests of `count` random adapters on all projections, put into folder/store."""
    store = AdapterStore(folder / "store")
    for number in range(count):
        torch.manual_seed(number)
        tensors = {}
        for layer in range(model.num_layers):
            for projection in PROJECTIONS:
                width, height = model.projection_shape(projection)
                block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
                name = f"base_model.model.model.layers.{layer}.{block}.{projection}"
                tensors[f"{name}.lora_A.weight"] = torch.randn(rank, width).bfloat16() * 0.01
                tensors[f"{name}.lora_B.weight"] = torch.randn(height, rank).bfloat16() * 0.01
        source = folder / f"adapter-{number}"
        source.mkdir()
        save_file(tensors, source / "adapter_model.safetensors")
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(PROJECTIONS)}
        (source / "adapter_config.json").write_text(json.dumps(settings))
        yield store.add(source)


def table_line(row: dict[str, Any]) -> str:
    return (
        f"{row['streams']:>3} streams  {row['adapters']:>2} adapters  {row['tokens_per_s']:>7} tokens/s  "
        f"transformers, base: {row['transformers_base_tokens_per_s']:>6}  ratio {row['ratio']}\n"
    )


if __name__ == "__main__":
    main()
