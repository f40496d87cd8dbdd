"""The function that transformers calls for attention (its `AttentionInterface`), and what each layer asks of it.

Each attention module of a model carries the hook of that model, so several models live beside each other in one
process. Knows no cache: what is done with queries, keys and values is the hook's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

STEPS = "lorikeet_steps"
"""The name of attention over the cache. Transformers makes no mask for it, as for other engines' attention."""
TRIAL = "lorikeet_trial"
"""The name of attention in a trial, for which masks are asked for: they tell the window of each layer."""
_HOOK = "lorikeet_attention_hook"


class LayerAttention(msgspec.Struct, frozen=True):
    """The parameters of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """The size of queries and keys."""
    value_dim: int
    """The size of values, at most head_dim."""
    scaling: float
    """The factor of the scores."""
    window: int | None = None
    """The number of tokens that a position sees, itself included; None sees all."""
    cap: float | None = None
    """The bound c of scores s, which become c * tanh(s / c); None: not bounded."""
    has_sinks: bool = False
    """True if each head has a sink, which takes a part of the weights."""


class RotatedAttention(Protocol):
    """The attention of one step's rows over the cache, for queries and keys that are rotated already."""

    def attend_rotated(self, index: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend in layer `index`, whose keys and values are in the cache afterwards.

        q [N, heads, D], k [N, kv_heads, D], v [N, kv_heads, E]; sinks [heads] or None -> [N, heads, E].
        """


class Hook(Protocol):
    """The attention of one model in the step, or the trial, that is being computed."""

    def __call__(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        """Compute attention: q [1, heads, N, D], k [1, kv_heads, N, D], v [1, kv_heads, N, E] -> [1, N, heads, E]."""


class Mask(Tensor):
    """The mask of a trial. It holds no numbers, but the function by which transformers would fill it."""

    sees: Callable[[int, int], bool]
    """The function that tells whether the token at the first position sees that at the second one."""


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention by the hook of the module's model; transformers calls this function under both names."""
    hook: Hook = getattr(module, _HOOK)
    return hook(module, query, key, value, attention_mask, options), None


def trial_mask(mask_function: Callable[..., Any], **options: Any) -> Mask:
    """Return a tensor without content that carries transformers' mask function, for the hook to read (`Mask.sees`)."""

    def sees(query: int, key: int) -> bool:
        zero = torch.tensor(0)
        return bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(key)))

    mask = torch.empty(0).as_subclass(Mask)
    mask.sees = sees
    return mask


def register_hook(model: nn.Module, hook: Hook) -> None:
    """Register the hook that a model's attention modules call. PyTorch does not see it as a part of the module."""
    for module in model.modules():
        object.__setattr__(module, _HOOK, hook)


AttentionInterface.register(STEPS, attend)
AttentionInterface.register(TRIAL, attend)
AttentionMaskInterface.register(TRIAL, trial_mask)
