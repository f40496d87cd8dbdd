"""The angles of rotary position embedding for a model: plain, linearly scaled, Llama 3's scaling, YaRN or LongRoPE."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.config import ModelConfig, RopeParameters
from kernels.rope import wide_tables


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> Tensor:
    """Return the inverse frequencies [head_dim / 2] fp32, in radians per position; 0 where nothing is rotated.

    If LongRoPE has two kinds of factors, the frequencies are by the short ones.
    """
    size = rope.rotary_dim or head_dim
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        plain = plain / rope.factor
    if rope.kind == "llama3":
        plain = _llama3(plain, rope)
    if rope.kind == "yarn":
        plain = _yarn(plain, rope)
    if rope.kind == "longrope":
        plain = 1.0 / (torch.tensor(rope.short_factors) * rope.theta**exponents)
    return _padded(plain, head_dim, 0.0)


def _padded(x: Tensor, head_dim: int, value: float) -> Tensor:
    """Return x [..., rotary_dim / 2] with more of a value up to [..., head_dim / 2]."""
    return torch.nn.functional.pad(x, (0, head_dim // 2 - x.shape[-1]), value=value)


def _llama3(plain: Tensor, rope: RopeParameters) -> Tensor:
    """Stretch long wavelengths by `factor`, keep short ones, interpolate those between (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    longest = rope.original_max_position / rope.low_freq_factor
    shortest = rope.original_max_position / rope.high_freq_factor
    share = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(wavelength > longest, plain / rope.factor, plain)
    return torch.where((wavelength <= longest) & (wavelength >= shortest), between, stretched)


def _yarn(plain: Tensor, rope: RopeParameters) -> Tensor:
    """Keep dimensions that turn often within the original context, stretch those that turn rarely by `factor`.

    There is a ramp between (Peng et al., 2023, section 3.2).
    """
    half = plain.shape[0]

    def dimension(num_turns: float) -> float:
        ratio = rope.original_max_position / (num_turns * 2 * math.pi)
        return half * math.log(ratio) / math.log(rope.theta)

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    ramp = ((torch.arange(half).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def cos_and_sin(rope: RopeParameters, head_dim: int, max_position: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position: [max_position, head_dim / 2] fp32 each, attention_factor multiplied in.

    Dimensions that are not rotated have cos 1 and sin 0. LongRoPE's tables have all positions of long sequences behind
    the first original_max_position ones, which are those of short sequences, if there are longer ones.
    """
    short = inverse_frequencies(rope, head_dim)
    switch = rope.original_max_position
    if rope.kind != "longrope" or max_position <= switch:
        angles = torch.outer(torch.arange(max_position).float(), short)
    else:
        long = inverse_frequencies(_long_parameters(rope), head_dim)
        parts = [
            torch.outer(torch.arange(switch).float(), short),
            torch.outer(torch.arange(max_position).float(), long),
        ]
        angles = torch.cat(parts)
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    if rope.rotary_dim:
        cos = _padded(cos[:, : rope.rotary_dim // 2], head_dim, 1.0)
    return cos, sin


def _long_parameters(rope: RopeParameters) -> RopeParameters:
    return RopeParameters(rope.theta, rope.kind, rotary_dim=rope.rotary_dim, short_factors=rope.long_factors)


def query_factors(config: ModelConfig, max_position: int) -> Tensor | None:
    """Return the factor of the queries at each position, [max_position] fp32; None where it is always 1.

    It is 1 + query_growth ln(1 + floor(position / original_max_position)), as Llama 4 and Ministral 3 have it.
    """
    if not config.query_growth:
        return None
    steps = torch.floor(torch.arange(max_position) / config.rope.original_max_position)
    return 1 + config.query_growth * torch.log(1 + steps)


class RotaryTable:
    """cos and sin of every position up to max_position, for rows of rotated heads followed by plain ones, on a CPU."""

    def __init__(
        self, rope: RopeParameters, heads: tuple[int, int], head_dim: int, max_position: int, dtype: torch.dtype
    ) -> None:
        self._rotated, self._plain = heads
        cos, sin = wide_tables(*cos_and_sin(rope, head_dim, max_position))
        self._cos, self._sin = cos[:, None].to(dtype), sin[:, None].to(dtype)  # [max_position, 1, head_dim]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of positions [N] int64, each [N, heads, head_dim], as `kernels.rope` takes them."""
        return self._with_plain_dims(self._cos[positions], 1.0), self._with_plain_dims(self._sin[positions], 0.0)

    def _with_plain_dims(self, factors: Tensor, plain: float) -> Tensor:
        num_rows, _, head_dim = factors.shape
        rest = factors.new_full((num_rows, self._plain, head_dim), plain)
        return torch.cat((factors.expand(-1, self._rotated, -1), rest), 1)
