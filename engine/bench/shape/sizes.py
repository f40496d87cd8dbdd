"""Shapes of models by name, and how much of everything the scenarios take."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from engine.config import ModelConfig, RopeParameters

LLAMA3_ROPE = RopeParameters(5e5, "llama3", 8.0, 1.0, 4.0, 8192)
SHAPES = {
    "llama-3.1-8b": ModelConfig(
        family="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope=LLAMA3_ROPE,
        max_position=131072,
        tie_word_embeddings=False,
    ),
    "smollm2-135m": ModelConfig(
        family="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope=RopeParameters(1e5),
        max_position=8192,
        tie_word_embeddings=True,
    ),
    "tiny": ModelConfig(
        family="llama",
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope=RopeParameters(1e4),
        max_position=512,
        tie_word_embeddings=True,
    ),
}


class Sizes(NamedTuple):
    """streams: sequences that decode at once; context: tokens of each before; adapters: distinct ones among them, of
    this rank; slots: adapters on the device. beside: tokens of a prompt in a step with decodes. chunks of chunk_tokens
    make a prefill step. registered: adapters of the run with few slots, over requests; few: of the one it is compared
    with. background: streams with an adapter each, beside which in each round this many loads happen, one every
    pace_ms. steps: timed for each figure, in rounds that each begin with warm_up others."""

    streams: int = 64
    context: int = 1024
    adapters: int = 32
    rank: int = 16
    slots: int = 64
    beside: int = 64
    chunks: int = 8
    chunk_tokens: int = 1024
    registered: int = 1000
    few: int = 5
    requests: int = 512
    background: int = 32
    loads: int = 32
    pace_ms: int = 30
    steps: int = 40
    rounds: int = 4
    warm_up: int = 3


DRY = Sizes(
    streams=3,
    context=5,
    adapters=2,
    rank=3,
    slots=2,
    beside=3,
    chunks=2,
    chunk_tokens=5,
    registered=3,
    few=1,
    requests=3,
    background=1,
    loads=1,
    pace_ms=1,
    steps=1,
    rounds=1,
    warm_up=0,
)

DRY_MODEL = msgspec.structs.replace(SHAPES["tiny"], num_layers=1)
