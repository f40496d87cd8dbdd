"""Shapes of models by name, and how much of everything the scenarios take."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from engine.config import ModelConfig, RopeParameters

LLAMA3_ROPE = RopeParameters(
    5e5, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)
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
    """The sizes of the scenarios."""

    streams: int = 64
    """Sequences that decode at once."""
    context: int = 1024
    """Tokens that each sequence has before the measured step."""
    adapters: int = 32
    """The number of distinct adapters among the sequences."""
    rank: int = 16
    """The rank of adapters."""
    slots: int = 64
    """Slots for adapters on the device."""
    mixed_prompt_tokens: int = 64
    """Tokens of a prompt in a step with decodes."""
    chunks: int = 8
    """Chunks of a prefill step."""
    chunk_tokens: int = 1024
    """Tokens of each chunk."""
    registered: int = 1000
    """The number of adapters in the run that has many more adapters than slots."""
    few_registered: int = 5
    """The number of adapters in the run with which the run of `registered` adapters is compared."""
    requests: int = 512
    """Requests of the run with `registered` adapters, and of the one with `few_registered`."""
    background: int = 32
    """Streams with an adapter each, beside which loads happen."""
    loads: int = 32
    """Loads in each round."""
    pace_ms: int = 30
    """Milliseconds between two loads."""
    steps: int = 40
    """Steps that are timed for each figure."""
    rounds: int = 4
    """Rounds of the timed steps."""
    warm_up: int = 3
    """Steps at the beginning of each round that are not timed."""


DRY = Sizes(
    streams=3,
    context=5,
    adapters=2,
    rank=3,
    slots=2,
    mixed_prompt_tokens=3,
    chunks=2,
    chunk_tokens=5,
    registered=3,
    few_registered=1,
    requests=3,
    background=1,
    loads=1,
    pace_ms=1,
    steps=1,
    rounds=1,
    warm_up=0,
)

DRY_MODEL = msgspec.structs.replace(SHAPES["tiny"], num_layers=1)
