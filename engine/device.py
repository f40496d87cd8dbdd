"""The interface of the device that an engine computes on, in `engine.cpu` or `engine.cuda`.

Everything above, from the scheduler to the model runner, is the same for all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from engine.config import EngineConfig, ModelConfig
from engine.config.cache_layout import CacheLayout, layout_of
from engine.hardware import SetupError
from engine.lora.layer import AdapterLayout, LoadedAdapter
from engine.sampling.logits_processors import Adjust, adjust_
from engine.sampling.sampler import Choose
from engine.sequence import ChunkResult, Plan, Sequence
from engine.transfers import Event, Transfers

AdapterIn = Callable[[int], LoadedAdapter]


class Pause(Protocol):
    """A request to pause a step, which may come while the step is computed."""

    @property
    def address(self) -> int:
        """The address of an int32 that is not 0 while the pause is asked for."""

    @property
    def is_asked(self) -> bool:
        """True while the pause is asked for."""


class PausableForward(Protocol):
    """Hidden states that are computed in one or more parts, while other plans may be computed in between."""

    @property
    def hidden(self) -> Tensor:
        """The hidden states, as `DevicePath.forward` returns them, once all is computed."""

    def go_on(self, pause: Pause | None, seconds: float) -> bool:
        """Compute on, until the pause is asked for or the seconds are over; return True once all is computed.

        Some part is computed in any case.
        """


class DevicePath(Protocol):
    """Computes plans. Owns the cache's memory.

    feeds: True: tokens that a step chose can be the next one's without a way over the host, so its plan may have chunks
    that follow. Otherwise `feed` is not called.
    halfway: comes when the device is halfway through the last `forward`.
    """

    @property
    def feeds(self) -> bool:
        """True if tokens that a step chose can be the next step's without a way over the host."""

    @property
    def halfway(self) -> Event:
        """The event that comes when the device is halfway through the last `forward`."""

    def order(self, plan: Plan) -> Many[int]:
        """Return the places of plan.decodes in the order in which they are computed best."""

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        """Return the hidden states [W, hidden] of these rows of the plan, valid until the next call."""

    def begin(self, plan: Plan, output_rows: Many[int]) -> PausableForward | None:
        """Begin a plan's hidden states, as `forward` returns them, in parts; return None if memory is lacking for that.

        Only called where steps can pause (`Device.pauses`). No sequence of the plan may be in another one until all is
        computed.
        """

    def replays(self, plan: Plan, num_outputs: int) -> bool:
        """Tell whether `forward`, with so many output rows, is one launch instead of hundreds."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32, valid until the next call."""

    def feed(self, token_ids: Tensor, sequences: Many[Sequence]) -> None:
        """Feed tokens to chunks of the next plan that follow.

        token_ids [N] int64 on the device: the token chosen for each sequence; negative where no token could be chosen.
        """


class Step(Protocol):
    """A plan that was launched on the device."""

    def await_half(self) -> None:
        """Wait until the device is halfway through the step."""

    def wait(self) -> Many[ChunkResult]:
        """Wait for the step, and return one result for each chunk of the plan."""


class PausableStep(Protocol):
    """A plan that is computed in one or more parts, while other plans may be computed in between."""

    def go_on(self, pause: Pause | None, seconds: float) -> bool:
        """Compute on, until the pause is asked for or the seconds are over; return True once the step is done."""

    def wait(self) -> Many[ChunkResult]:
        """Return one result for each chunk of the plan, once the step is done."""


class Runner(Protocol):
    """Computes plans: `ModelRunner`, the runner of encoders, or a test's stand-in.

    runs_ahead: True: a plan may be launched before the results of the one before it are taken, and its chunks may
    follow that one's.
    """

    @property
    def runs_ahead(self) -> bool:
        """True if a plan may be launched before the results of the one before it are taken."""

    def launches_fast(self, plan: Plan) -> bool:
        """Tell whether the host is done with the launch of a plan long before the device is done with the step."""

    def launch(self, plan: Plan) -> Step:
        """Launch a plan, and return its step."""

    def begin(self, plan: Plan) -> PausableStep | None:
        """Begin a plan whose step can pause; return None where steps cannot pause, as in a runner that runs ahead.

        No sequence of the plan may be in another one until the step is done.
        """


class Device(msgspec.Struct, frozen=True):
    """A device with its base model loaded and its memory divided."""

    num_blocks: int
    """The blocks of the KV cache."""
    max_model_len: int
    """The most prompt and completion tokens of one sequence."""
    token_bytes: int
    """The bytes of one token's keys and values."""
    adapter_bytes: int
    """Bytes for adapters in slots."""
    transfers: Transfers
    """Copies small tensors between the host and the device."""
    choose: Choose
    """Chooses token ids from logits on the device."""
    make_path: Callable[[AdapterIn], DevicePath]
    """The function that makes the path; called with a function that returns the adapter in a slot of the pool."""
    adjust: Adjust = adjust_
    """Applies logit_bias and penalties to logits on the device."""
    pin: bool = False
    """True if the device copies adapters from pinned memory of the host tier."""
    keeps_bfloat16: bool = False
    """True if adapters whose files are in bfloat16 stay in bfloat16."""
    expect: Callable[[AdapterLayout], None] = lambda layout: None
    """The function that is called with the layout of every adapter that is about to be used."""
    to_device: Callable[[LoadedAdapter], LoadedAdapter] | None = None
    """Copies an adapter to the device; None where the adapter is computed where it lies."""
    vacate: Callable[[int], None] = lambda index: None
    """The function that is called with the number of a slot when its adapter leaves."""
    make_runner: Callable[[AdapterIn], Runner] | None = None
    """Makes the runner of plans of a model that makes no tokens; None: plans are run by `engine.model_runner`."""
    pauses: bool = False
    """True if the path's steps can pause."""
    num_state_slots: int = 0
    """The number of slots for states; 0 for a model without any."""
    layout: CacheLayout = CacheLayout()
    """The layout of the KV cache, of whose blocks there are num_blocks."""
    model: ModelConfig | None = None
    """The model's configuration as it was found while loading; None: as the folder's own configuration said."""


BuildDevice = Callable[[EngineConfig, ModelConfig, torch.dtype], Device]


def kv_token_bytes(model: ModelConfig, dtype: torch.dtype, *, in_float8: bool = False) -> int:
    """Return the bytes of one token's keys and values in all layers that have them.

    in_float8: in 8 bits, each with its scale.
    """
    head_bytes = model.head_dim + torch.float32.itemsize if in_float8 else model.head_dim * dtype.itemsize
    return 2 * len(model.cached_layers) * model.num_kv_heads * head_bytes


def state_slots(model: ModelConfig, max_num_seqs: int, budget_bytes: int, kept_bytes: int) -> int:
    """Return how many slots for states a cache has, one for each sequence and one for a snapshot of each.

    There are fewer where that would leave less than kept_bytes of the budget, and less than a half, to blocks.

    max_num_seqs: the most sequences that run. budget_bytes: the memory for states and blocks. kept_bytes: the part
    of that memory that blocks should have.

    Raises SetupError: when fewer than two fit, with which no sequence could go on from a snapshot.
    """
    if model.recurrence is None:
        return 0
    slot_bytes = model.recurrence.state_bytes
    number = min(2 * max_num_seqs, max(budget_bytes - kept_bytes, budget_bytes // 2) // slot_bytes)
    if number < 2:
        raise SetupError(
            f"LORIKEET_KV_CACHE_BYTES is {budget_bytes}; the states of one sequence take {slot_bytes}, "
            "of which at least two must fit in half of it"
        )
    return number


def layout_for(config: EngineConfig, model: ModelConfig) -> CacheLayout:
    """Return the layout of a model's KV cache, for sequences as long as the settings allow."""
    longest = min(config.max_model_len or model.max_position, model.max_position)
    return layout_of({layer: model.window(layer) for layer in model.cached_layers}, longest)


def tokens_ahead(config: EngineConfig) -> int:
    """Return the most tokens beyond the computed ones that a sequence has blocks for: those of two steps."""
    return 2 * config.max_batched_tokens


def blocks_within(budget_bytes: int, block_bytes: int, available_bytes: int | None, num_tables: int = 1) -> int:
    """Return how many blocks of the KV cache a number of bytes makes.

    num_tables: the number of tables of a sequence.

    Raises SetupError: when more than the available bytes are asked for, or fewer than two blocks fit for each table.
    """
    if available_bytes is not None and budget_bytes > available_bytes:
        raise SetupError(
            f"LORIKEET_KV_CACHE_BYTES is {budget_bytes}, but only {available_bytes} bytes of memory are free"
        )
    num_blocks = budget_bytes // block_bytes
    if num_blocks < 2 * num_tables:
        raise SetupError(
            f"LORIKEET_KV_CACHE_BYTES is {budget_bytes}; one block of this model takes {num_tables * block_bytes} bytes"
        )
    return num_blocks


def context_length(config: EngineConfig, model: ModelConfig, num_blocks: int, layout: CacheLayout) -> int:
    """Return the tokens that one sequence may have: as configured, and at most what the cache holds."""
    most = min(config.max_model_len or model.max_position, model.max_position)
    held = layout.longest(num_blocks, tokens_ahead(config), config.block_size)
    return most if held is None else min(most, held)
