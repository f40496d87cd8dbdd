"""The sizes of layers that keep a state in place of keys and values, and the names of their linears. Knows no file."""

from __future__ import annotations

from typing import Literal

import msgspec


class Recurrence(msgspec.Struct, frozen=True):
    """The layers that keep a state of one size in place of the keys and values of all tokens.

    Their computation is described in `kernels.linear_attention`. Mamba-2's words for key heads, their dimensions and
    those of values are groups, state size and head dimensions.
    """

    kind: Literal["gated_delta", "mamba2"]
    layers: tuple[int, ...]
    """The layers that have a state, in order. All others attend."""
    num_key_heads: int
    """The number of heads of queries and keys."""
    num_heads: int
    """The number of heads of values, each of which has a state [key_dim, value_dim]."""
    key_dim: int
    """The size of a query and of a key."""
    value_dim: int
    """The size of a value."""
    conv_width: int
    """The number of tokens that the convolution sees, the present one included."""
    has_conv_bias: bool = False
    """True where the convolution has a bias."""
    has_proj_bias: bool = False
    """True where the linears before and after the recurrence have biases."""
    is_grouped: bool = False
    """True where a checkpoint has two linears for the inputs, each with all outputs of a key head together: Qwen3-Next.
    The engine has the queries of all heads first, then the keys, and so on."""

    @property
    def block(self) -> str:
        """The module of a layer that has the state."""
        return "linear_attn" if self.kind == "gated_delta" else "mamba"

    @property
    def num_keys(self) -> int:
        """The size of all keys of a token."""
        return self.num_key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        """The size of all values of a token."""
        return self.num_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """The size of a token's queries, keys and values, which go through the convolution."""
        return 2 * self.num_keys + self.num_values

    @property
    def inputs(self) -> dict[str, int]:
        """The linears that make the layer's inputs, with their outputs, in the order in which the engine has them."""
        if self.kind == "mamba2":
            return {"mamba.in_proj": self.num_values + self.num_channels + self.num_heads}
        if self.is_grouped:
            return {
                "linear_attn.in_proj_qkvz": self.num_channels + self.num_values,
                "linear_attn.in_proj_ba": 2 * self.num_heads,
            }
        return {
            "linear_attn.in_proj_qkv": self.num_channels,
            "linear_attn.in_proj_z": self.num_values,
            "linear_attn.in_proj_b": self.num_heads,
            "linear_attn.in_proj_a": self.num_heads,
        }

    @property
    def input_groups(self) -> list[tuple[str, ...]]:
        """The linears of `inputs` in pairs, in order, as adapters on them are multiplied.

        A GPU multiplies with at most three adapted linears at once.
        """
        names = tuple(self.inputs)
        return [names[first : first + 2] for first in range(0, len(names), 2)]

    def parts_of_groups(self, name: str) -> tuple[int, ...]:
        """Return the sizes of the parts of one key head's outputs of a linear; () where they are not together."""
        if not self.is_grouped or name not in self.inputs:
            return ()
        heads = self.num_heads // self.num_key_heads
        if name == "linear_attn.in_proj_ba":
            return heads, heads
        return self.key_dim, self.key_dim, heads * self.value_dim, heads * self.value_dim

    @property
    def output(self) -> str:
        """The linear that makes the layer's output."""
        return f"{self.block}.out_proj"

    @property
    def state_bytes(self) -> int:
        """The bytes of one sequence's states of all layers, in float32."""
        state = self.num_heads * self.key_dim * self.value_dim
        return 4 * len(self.layers) * (state + (self.conv_width - 1) * self.num_channels)
