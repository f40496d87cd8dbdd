"""The states of sequences in layers that keep one of fixed size, and how a step's rows go on from them.

Each sequence has a slot, and each snapshot of a sequence's states has one. A slot holds for every layer with a state
the last inputs of the convolution and the state itself, in float32. A run is consecutive rows of one sequence: it
begins with the states of a slot, or with zeros, and leaves its own in another or the same one, as
`engine.scheduling.cache.state_slots` has decided. Knows no device and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from engine.config.recurrence import Recurrence
from engine.models.weights import LayerWeights, RecurrentWeights
from engine.sequence import Plan
from kernels.linear_attention import causal_conv, decayed_sum, decayed_sum_step, gated_delta, gated_delta_step

Ints = NDArray[np.int64]

UNIT_EPS = 1e-6
"""The number that keeps the length of a query or a key above zero, as in the paper's own code."""


class Run(msgspec.Struct, frozen=True):
    """Rows [first, last) of a step, of one sequence."""

    first: int
    last: int
    source: int | None
    """The slot with the states before the first row; None: zeros."""
    slot: int
    """The slot that has the states after the last row."""


class StateRows(msgspec.Struct, frozen=True):
    """The rows of a step: single rows of many sequences, then runs, those of one sequence in order."""

    sources: Tensor
    """[num_singles] int64, the slots with the states before each single row."""
    slots: Tensor
    """[num_singles] int64, the slots that hold the states after the step."""
    runs: Many[Run]
    """The rows of chunks, in order."""

    @classmethod
    def of(cls, plan: Plan, put: Callable[[Ints], Tensor]) -> StateRows:
        """Return the rows of a plan, whose decodes have no drafts. A chunk is cut where a snapshot is taken.

        put: brings integers to the device.
        """
        parts = [chunk.states for chunk in plan.decodes if chunk.states is not None]
        sources, slots = put(np.array([[p.source for p in parts], [p.slot for p in parts]], dtype=np.int64))
        runs, first = list[Run](), len(parts)
        for chunk in plan.prefills:
            assert chunk.states is not None
            source, last = chunk.states.source, first + chunk.num_tokens
            for position, slot in chunk.states.snapshots:
                runs.append(Run(first, end := last - (chunk.first + chunk.num_tokens - position), source, slot))
                first, source = end, slot
            runs.append(Run(first, last, source, chunk.states.slot))  # without rows after a snapshot of the chunk's end
            first = last
        return cls(sources, slots, runs)


class StateTable:
    """The states of all slots."""

    def __init__(self, recurrence: Recurrence, eps: float, num_slots: int, device: torch.device) -> None:
        """Set up the table. eps: the epsilon of the norm of a state's output."""
        self.recurrence, self.eps = recurrence, eps
        tail = (num_slots, recurrence.conv_width - 1, recurrence.num_channels)
        state = (num_slots, recurrence.num_heads, recurrence.key_dim, recurrence.value_dim)
        self._tails = {layer: torch.zeros(tail, device=device) for layer in recurrence.layers}
        self._states = {layer: torch.zeros(state, device=device) for layer in recurrence.layers}

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the two tensors of a layer: the last inputs of the convolution, and the states.

        They are [slots, conv_width - 1, channels] and [slots, heads, key_dim, value_dim].
        """
        return self._tails[layer], self._states[layer]


class TableStates:
    """The states of one step's rows in a table (`engine.models.decoder.StepStates`)."""

    def __init__(self, table: StateTable, rows: StateRows) -> None:
        self._table = table
        self._rows = rows

    def recur(self, index: int, layer: LayerWeights, inputs: Tensor) -> Tensor:
        """Return the outputs [N, num_values] of the rows' inputs [N, ...] in layer `index`, and keep the states."""
        recurrence, weights, rows = self._table.recurrence, layer.recurrent, self._rows
        assert weights is not None
        x = inputs.float()
        if recurrence.kind == "mamba2":
            sizes = [recurrence.num_values, recurrence.num_channels, recurrence.num_heads]
            gate, channels, steps = torch.split(x, sizes, 1)
            betas = steps  # has none
        else:
            heads = recurrence.num_heads
            channels, gate, betas, steps = torch.split(
                x, [recurrence.num_channels, recurrence.num_values, heads, heads], 1
            )
            betas = betas.sigmoid()
        steps = softplus(steps + weights.step_bias)
        tails, states = self._table.of_layer(index)
        out = x.new_empty(len(x), recurrence.num_heads, recurrence.value_dim)
        if num_singles := len(rows.slots):
            mine = channels[:num_singles, None]
            before = tails.index_select(0, rows.sources)
            mixed = causal_conv(mine, before, weights.conv, weights.conv_bias)[:, 0]
            tails.index_copy_(0, rows.slots, torch.cat((before[:, 1:], mine), 1))
            of_rows = states.index_select(0, rows.sources)
            out[:num_singles] = self._step(weights, mixed, steps[:num_singles], betas[:num_singles], of_rows)
            states.index_copy_(0, rows.slots, of_rows)
        for run in rows.runs:
            self._run(run, weights, (channels, steps, betas), (tails, states), out)
        return self._normed(out, gate, weights).to(inputs.dtype)

    def _run(
        self,
        run: Run,
        weights: RecurrentWeights,
        given: tuple[Tensor, Tensor, Tensor],
        table: tuple[Tensor, Tensor],
        out: Tensor,
    ) -> None:
        """Compute a run's rows of out, and leave its states in the table."""
        (channels, steps, betas), (tails, states) = (each[run.first : run.last] for each in given), table
        if run.source is None:
            before, state = torch.zeros_like(tails[0]), torch.zeros_like(states[0])
        else:
            before, state = tails[run.source], states[run.source]
        if run.first < run.last:
            mixed = causal_conv(channels, before, weights.conv, weights.conv_bias)
            before = torch.cat((before, channels))[-len(before) :]
            out[run.first : run.last], state = self._many_rows(weights, mixed, steps, betas, state)
        tails[run.slot], states[run.slot] = before, state

    def _step(self, weights: RecurrentWeights, mixed: Tensor, steps: Tensor, betas: Tensor, states: Tensor) -> Tensor:
        q, k, v, decay = self._inputs(weights, mixed, steps)
        if self._table.recurrence.kind == "gated_delta":
            return gated_delta_step(q, k, v, decay, betas, states)
        return _skipped(decayed_sum_step(q, k, v * steps[..., None], decay, states), v, weights)

    def _many_rows(
        self, weights: RecurrentWeights, mixed: Tensor, steps: Tensor, betas: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, v, decay = self._inputs(weights, mixed, steps)
        if self._table.recurrence.kind == "gated_delta":
            return gated_delta(q, k, v, decay, betas, state)
        out, state = decayed_sum(q, k, v * steps[..., None], decay, state)
        return _skipped(out, v, weights), state

    def _inputs(self, weights: RecurrentWeights, mixed: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, values and decays of rows [N, num_channels] after the convolution."""
        recurrence, num_rows = self._table.recurrence, len(mixed)
        keys, values = recurrence.num_keys, recurrence.num_values
        if recurrence.kind == "mamba2":
            v, k, q = torch.split(mixed, [values, keys, keys], 1)
        else:
            q, k, v = torch.split(mixed, [keys, keys, values], 1)
        q, k = (each.reshape(num_rows, recurrence.num_key_heads, recurrence.key_dim) for each in (q, k))
        if recurrence.kind == "gated_delta":
            q, k = _unit(q) * recurrence.key_dim**-0.5, _unit(k)
        return q, k, v.reshape(num_rows, recurrence.num_heads, recurrence.value_dim), weights.decay * steps

    def _normed(self, out: Tensor, gate: Tensor, weights: RecurrentWeights) -> Tensor:
        """Return the output [N, num_values] of a layer's states out [N, heads, value_dim], normed and gated.

        A gated delta rule has the gate after the norm of each head, Mamba-2 before that of each group.
        """
        gate = torch.nn.functional.silu(gate)
        if self._table.recurrence.kind == "mamba2":
            grouped = (out.flatten(1) * gate).view(len(out), self._table.recurrence.num_key_heads, -1)
            return self._unit_length(grouped).flatten(1) * weights.norm
        return (self._unit_length(out) * weights.norm).flatten(1) * gate

    def _unit_length(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._table.eps)


def _skipped(out: Tensor, v: Tensor, weights: RecurrentWeights) -> Tensor:
    """Return the output with each head's share of the values added."""
    assert weights.skip is not None
    return out + weights.skip[:, None] * v


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)
