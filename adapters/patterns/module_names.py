"""The names of linear modules that adapters adapt: whole ones in a model, and short ones that leave out the layer.

A model's `model.layers.3.self_attn.q_proj` is `q_proj` of layer 3, as for all seven projections of the Llama family.
Other modules keep what follows the layer, `mlp.fc1`; those of models whose layers lie elsewhere keep the whole name,
with a star for the layer: `gpt_neox.layers.*.attention.dense`. A matrix of each of 8 experts that are one parameter is
`mlp.experts[8].gate_up_proj`. Knows no files and no tensors.
"""

from __future__ import annotations

import re

BLOCK_OF_PROJECTION = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
USUAL_STACK = "model.layers"

_WORD = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_PART = r"[A-Za-z0-9_]{1,40}"
_MODULE = re.compile(rf"({_WORD}(?:\.{_WORD}){{0,3}})\.(0|[1-9][0-9]{{0,2}})\.({_PART}(?:\.{_PART}){{0,5}})")

_COUNT = re.compile(r"\[([0-9]+)\]")
_ROUTERS = ("gate", "router")

ModuleKey = tuple[int, str]  # the layer, and the short name of the module


def module_key(name: str) -> ModuleKey | None:
    """Return the layer and the short name of a module by its name in the model; None where no layer has the module."""
    match = _MODULE.fullmatch(name)
    if match is None:
        return None
    stack, layer, path = match[1], int(match[2]), match[3]
    block, _, last = path.rpartition(".")
    if stack == USUAL_STACK and last in BLOCK_OF_PROJECTION and block in ("self_attn", "mlp"):
        return (layer, last) if BLOCK_OF_PROJECTION[last] == block else None
    if stack == USUAL_STACK and block:
        return layer, path
    return layer, f"{stack}.*.{path}"


def module_name(layer: int, short: str) -> str:
    """Return a module's name in the model by its layer and its short name."""
    if short in BLOCK_OF_PROJECTION:
        return f"{USUAL_STACK}.{layer}.{BLOCK_OF_PROJECTION[short]}.{short}"
    stack, star, path = _COUNT.sub("", short).partition(".*.")
    return f"{stack}.{layer}.{path}" if star else f"{USUAL_STACK}.{layer}.{short}"


def is_of_expert(short: str) -> bool:
    """Tell whether a module, by its short name, is a part of one expert among several, or of all of them."""
    return any(part.partition("[")[0] == "experts" for part in short.split("."))


def is_router(short: str) -> bool:
    """Tell whether a module, by its short name, has the name of one that chooses experts."""
    return not set(_ROUTERS).isdisjoint(short.split("."))


def num_experts_of(short: str) -> int:
    """Return the number of experts of which a short name is a parameter; 0 for any other name."""
    match = _COUNT.search(short)
    return 0 if match is None else int(match[1])


def parameter_of_experts(short: str, num_experts: int, parameter: str) -> str:
    """Return the short name of a parameter that holds a matrix of each expert, by the short name of their module."""
    return f"{short}[{num_experts}].{parameter}"
