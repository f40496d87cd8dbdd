"""Measures how large the inputs of a model's matrices are, so that 4-bit integers lose least where it counts.

A weight's error reaches the output times its input. The inputs are those of a fixed text, another one than the text
that `engine.cpu.quality` measures by, and matrices are the model's own in float32. The idea is that of the importance
matrix of llama.cpp (https://github.com/ggml-org/llama.cpp, tools/imatrix).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cpu.text import states_of, token_ids_of
from engine.models.weights import Product, StackedMatrices, plain_embedding, plain_linear

log = logging.getLogger(__name__)

TEXT = Path(__file__).with_name("mixture.txt")
MOST_TOKENS = 1024
LEAST_ROWS = 32
"""The fewest rows of the text from which the importance of a matrix's inputs is taken. With fewer, as an expert may
have, all inputs of the matrix are equally important."""

LEAST_SHARE = 0.01
"""The least importance of an input, as a share of the matrix's mean: an input that is unused in this text may matter in
another."""


class Importance:
    """The squares of each input of a model's matrices, added up, by the names of the matrices [in]."""

    def __init__(self, squares: Mapping[str, Tensor]) -> None:
        self._squares = squares

    def of_inputs(self, name: str) -> Tensor | None:
        """Return the importance of the inputs of a matrix [in]; None where nothing was measured."""
        found = self._squares.get(name)
        return None if found is None else found + LEAST_SHARE * found.mean()


NOTHING = Importance({})
"""The importance by which all inputs are equal."""


@cache
def text_digest() -> str:
    """Return a short digest of `TEXT`: stored matrices name it, since their rounding depends on the text measured."""
    return hashlib.sha256(TEXT.read_bytes()).hexdigest()[:12]


def measure_importance(model_dir: str | Path, config: ModelConfig) -> Importance:
    """Return which inputs count in a model, measured by computing `TEXT` in float32 with one layer in memory at a time.

    Return NOTHING if the model has no tokenizer that fits it, or numbers that are not finite.

    Raises UnsupportedModel: when the engine cannot compute one of the model's layers.
    """
    began_s = time.monotonic()
    token_ids = token_ids_of(TEXT, Path(model_dir), config)[:MOST_TOKENS]
    if not token_ids:
        return NOTHING
    log.info("measuring which inputs count over %d tokens, once for this model", len(token_ids))
    observed = _Observed()
    with torch.inference_mode():
        states_of(model_dir, config, token_ids, observed.linear, plain_embedding, torch.float32)
    log.info("measured which inputs count in %.1f s", time.monotonic() - began_s)
    found = {name: total for name, total in observed.totals.items() if observed.num_rows[name] >= LEAST_ROWS}
    if not all(total.isfinite().all() for total in found.values()):
        log.warning("all inputs count alike: this model's numbers over the text are not finite")
        return NOTHING
    return Importance(found)


class _Observed:
    """The products of a model in plain numbers that add up the squares of their inputs."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.num_rows: Counter[str] = Counter()

    def linear(self, matrices: StackedMatrices, bias: Tensor | None) -> Product:
        """Return the product with the matrices, which observes its inputs.

        The product with the head, which makes logits, must not be called.

        bias: [out]; None without one.
        """
        if matrices.names == ("lm_head.weight",):
            return _Unread()
        return _ObservedLinear(plain_linear(matrices, bias), matrices.names, self)

    def note(self, names: Sequence[str], x: Tensor) -> None:
        """Add the squares of inputs x [N, in] of matrices."""
        squares = x.float().square().sum(0)
        for name in names:
            self.totals[name] = self.totals[name] + squares if name in self.totals else squares
            self.num_rows[name] += len(x)


class _Unread:
    """A product whose result nobody reads, in the place of the head's."""

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("no logits are made")

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Raise AssertionError: nothing is to be computed with this product."""
        return y + self(x)


class _ObservedLinear:
    """A product that notes its inputs under the names of its matrices."""

    def __init__(self, product: Product, names: Sequence[str], observed: _Observed) -> None:
        self._product, self._names, self._observed = product, names, observed

    def __call__(self, x: Tensor) -> Tensor:
        self._observed.note(self._names, x)
        return self._product(x)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the product with x, added to y."""
        self._observed.note(self._names, x)
        return self._product.add(x, y)
