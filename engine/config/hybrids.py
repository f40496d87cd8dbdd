"""Keys of layers that keep a state in place of keys and values, beside layers that attend."""

from __future__ import annotations

from typing import Any

from engine.config.model import UnsupportedModel
from engine.config.recurrence import Recurrence
from engine.config.values import whole_number

Raw = dict[str, Any]
MOST_CHANNELS, MOST_CONV = 1 << 20, 64

_ATTENDS = {"linear_attention": False, "mamba": False, "full_attention": True, "attention": True}
_UNBOUNDED = ([0.0, {"__float__": "Infinity"}], [0, {"__float__": "Infinity"}], [0.0, "Infinity"], [0.0, "inf"])


def qwen_recurrence(raw: Raw, *, is_grouped: bool = False) -> Recurrence | None:
    """Return the layers of Qwen3.5 or Qwen3-Next with a gated delta rule: as `layer_types` says, or three of four.

    is_grouped: as for `Recurrence`.

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    period, num_layers = whole_number(raw, "full_attention_interval"), raw["num_hidden_layers"]
    usual = ["linear_attention" if (layer + 1) % period else "full_attention" for layer in range(num_layers)]
    layers = _recurrent_layers(raw, ("layer_types",), usual)
    recurrence = Recurrence(
        "gated_delta",
        layers,
        num_key_heads=whole_number(raw, "linear_num_key_heads", MOST_CHANNELS),
        num_heads=whole_number(raw, "linear_num_value_heads", MOST_CHANNELS),
        key_dim=whole_number(raw, "linear_key_head_dim", MOST_CHANNELS),
        value_dim=whole_number(raw, "linear_value_head_dim", MOST_CHANNELS),
        conv_width=whole_number(raw, "linear_conv_kernel_dim", MOST_CONV),
        is_grouped=is_grouped,
    )
    if recurrence.num_heads % recurrence.num_key_heads:
        raise UnsupportedModel("config.json: linear_num_value_heads must be a multiple of linear_num_key_heads")
    return _checked_recurrence(recurrence, "linear_conv_kernel_dim")


def granite_recurrence(raw: Raw) -> Recurrence | None:
    """Return the layers of Granite 4 that are Mamba-2's; None where all layers attend.

    Raises UnsupportedModel: when a key asks for something that the engine does not compute; the error names the key.
    """
    layers = _recurrent_layers(
        raw, ("layer_types", "layers_block_type"), ["linear_attention"] * raw["num_hidden_layers"]
    )
    num_heads, num_groups = (
        whole_number(raw, "mamba_n_heads", MOST_CHANNELS),
        whole_number(raw, "mamba_n_groups", MOST_CHANNELS),
    )
    inner = whole_number(raw, "mamba_expand", MOST_CHANNELS) * raw["hidden_size"]
    given = raw.get("mamba_d_head")
    value_dim = inner // num_heads if given in (None, "auto") else whole_number(raw, "mamba_d_head", MOST_CHANNELS)
    if num_heads * value_dim != inner:
        raise UnsupportedModel("config.json: mamba_n_heads times mamba_d_head must be mamba_expand times hidden_size")
    if num_heads % num_groups:
        raise UnsupportedModel("config.json: mamba_n_heads must be a multiple of mamba_n_groups")
    # transformers bounds the steps of prompts by it, and not those of single tokens.
    if raw.get("time_step_limit") not in (None, *_UNBOUNDED):
        raise UnsupportedModel("config.json: time_step_limit is not supported")
    recurrence = Recurrence(
        "mamba2",
        layers,
        num_key_heads=num_groups,
        num_heads=num_heads,
        key_dim=whole_number(raw, "mamba_d_state", MOST_CHANNELS),
        value_dim=value_dim,
        conv_width=whole_number(raw, "mamba_d_conv", MOST_CONV),
        has_conv_bias=bool(raw.get("mamba_conv_bias", True)),
        has_proj_bias=bool(raw.get("mamba_proj_bias", False)),
    )
    return _checked_recurrence(recurrence, "mamba_d_conv")


def _recurrent_layers(raw: Raw, keys: tuple[str, ...], usual: list[str]) -> tuple[int, ...]:
    """Return the layers that do not attend.

    Raises UnsupportedModel: for another list than one of the kinds of all layers, and where no layer attends.
    """
    key = next((each for each in keys if raw.get(each) is not None), keys[0])
    kinds = usual if raw.get(key) is None else raw[key]
    if not isinstance(kinds, list) or len(kinds) != len(usual) or not all(_is_kind(kind) for kind in kinds):
        raise UnsupportedModel(f"config.json: {key} must list {len(usual)} times linear_attention or full_attention")
    layers = tuple(layer for layer, kind in enumerate(kinds) if not _ATTENDS[kind])
    if len(layers) == len(usual):
        raise UnsupportedModel(f"config.json: {key} has no layer that attends, which is not supported")
    return layers


def _is_kind(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _ATTENDS


def _checked_recurrence(recurrence: Recurrence, conv_key: str) -> Recurrence | None:
    """Return the layers with a state; None without any.

    Raises UnsupportedModel: for sizes that no model has, before any memory of such a size is taken.
    """
    if recurrence.conv_width < 2:
        raise UnsupportedModel(f"config.json: {conv_key} must be above 1")
    largest = max(recurrence.num_channels, recurrence.num_heads * recurrence.key_dim)
    if largest > MOST_CHANNELS:
        raise UnsupportedModel(f"config.json: {recurrence.block} has {largest} channels; at most {MOST_CHANNELS}")
    return recurrence if recurrence.layers else None
