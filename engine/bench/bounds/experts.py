"""Tokens per second of a mixture of experts with adapters on its experts, beside the same base without adapters.

The model is made of random weights, and has the form of Qwen3-MoE; --model-dir is not read. Streams with and without
adapters take turns in each round, in one engine. So do streams of the base model in 8-bit integers and in the numbers
of its files, in two engines. Run this on a machine that does nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.measures import tokens_per_s_of_batch
from engine.bench.options import option_help
from engine.bench.pairs import Bound, Pair, ratio_row, rounds
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.models.weights import assemble
from kernels.cpu.library import installed
from kernels.norm import RmsNorm

LEAST_RATIO = 0.8
LEAST_GAIN = 1.2
HEAD_DIM, KV_HEADS = 64, 2


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench experts`."""

    hidden: Annotated[int, option_help("size of the hidden states")] = 2048
    inner: Annotated[int, option_help("inner size of each expert")] = 768
    experts: Annotated[int, option_help("experts of each layer")] = 32
    chosen: Annotated[int, option_help("experts that are chosen for each token")] = 8
    layers: Annotated[int, option_help("layers")] = 3
    vocab: Annotated[int, option_help("tokens of the vocabulary")] = 8192
    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8)
    adapters: Annotated[int, option_help("distinct adapters of these requests")] = 8
    rank: Annotated[int, option_help("rank of the adapters")] = 16
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 17
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 48
    repeat: Annotated[int, option_help("rounds of each pair")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield the rows of a model with experts, with adapters and without."""
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as folder:
        save_random(Path(folder), options)
        config = msgspec.structs.replace(config, model_dir=folder)
        digests = random_adapters(config, options.adapters, options.rank)
        workload = Workload(options.vocab)

        def rate(engine: BenchEngine, streams: int, adapters: list[str]) -> float:
            picked = workload.pick(adapters, "turns")
            prompts = [workload.prompt(options.prompt_tokens) for _ in range(streams)]
            requests = [workload.request(prompt, options.new_tokens, adapter=next(picked)) for prompt in prompts]
            return tokens_per_s_of_batch(run_closed(engine, [Source(iter(requests), streams)]))

        plain, integers = (
            msgspec.structs.replace(config, quantization=kind) for kind in ("none", "int8" if installed() else "none")
        )
        with BenchEngine(plain, preload=digests) as first, BenchEngine(integers, preload=digests) as second:
            for streams in options.streams:
                case = f"tokens/s, {streams} streams"
                adapted = f"{case} over {min(streams, options.adapters)} adapters, beside the base"
                for engine, kind in ((first, ""), (second, ", int8")):
                    pairs = rounds(
                        lambda: Pair(rate(engine, streams, digests), rate(engine, streams, [])),  # noqa: B023
                        options.repeat,
                    )
                    yield ratio_row("experts", adapted + kind, pairs, Bound(LEAST_RATIO, is_least=True))
                pairs = rounds(
                    lambda: Pair(rate(second, streams, []), rate(first, streams, [])),  # noqa: B023
                    options.repeat,
                )
                yield ratio_row("experts", f"{case}, int8 beside none", pairs, Bound(LEAST_GAIN, is_least=True))


def save_random(folder: Path, options: Options) -> None:
    """Write a model of random weights in bf16 to a folder."""
    raw = {
        "model_type": "qwen3_moe",
        "vocab_size": options.vocab,
        "hidden_size": options.hidden,
        "intermediate_size": options.inner,
        "moe_intermediate_size": options.inner,
        "num_experts": options.experts,
        "num_experts_per_tok": options.chosen,
        "norm_topk_prob": True,
        "num_hidden_layers": options.layers,
        "num_attention_heads": max(options.hidden // HEAD_DIM, KV_HEADS),
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    model = load_model_config(folder)
    assert model.experts is not None
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = {}

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        made = torch.randn(shape) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5) + float(len(shape) == 1)
        tensors[name.replace("mlp.router", "mlp.gate")] = made.bfloat16()
        return tensors[name.replace("mlp.router", "mlp.gate")]

    assemble(take, model, RmsNorm)
    save_file(tensors, folder / "model.safetensors")
