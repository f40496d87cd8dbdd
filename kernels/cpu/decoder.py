"""A decoder's step on a CPU in one call: all layers, attention over the paged cache, and the adapters of all rows.

Semantics: the modules of `kernels`, one after another, with the products of `kernels.cpu.linear`. All numbers are in
float32 but for the embedding, which is a matrix of small integers, too, the cache and the matrices of adapters.

The structs of this module are those of `native/step/model.h`.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeLinear
from kernels.cpu.matrix import NativeMatrix

CACHE_BLOCK = 16
"""Positions of a block of the cache."""

NUM_PROJECTIONS = 7
"""Projections of a layer: q, k, v, o, gate, up and down, in this order."""

FACTORS = np.dtype(
    [("a", np.uint64), ("b", np.uint64), ("rank", np.int64), ("scaling", np.float64), ("dtype", np.int64)]
)
"""The part of an adapter for one projection: addresses of A [rank, in] and of B, transposed, [rank, out], and the
number of their dtype (`dtype_number`). Rank 0 adds nothing."""

CHUNK_FIELDS = 7
"""64-bit integers of a chunk: first row, number of rows, position, row of the first position's angles, first block,
number of blocks in each table, and the address of the adapter's factors or 0."""

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_POINTER, _INT64, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


def dtype_number(dtype: torch.dtype) -> int:
    """Return the number by which the native kernels know a dtype.

    Raises ValueError: when the native kernels do not compute in the dtype.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"the native kernels compute in float32 and bfloat16, not in {dtype}")
    return _DTYPES[dtype]


class LayerTensors(NamedTuple):
    """The tensors of one layer. Norms are float32, and None where the model has none.

    q_norm and k_norm are by head, or of all heads where the model's shape says so.
    """

    products: tuple[NativeLinear, NativeLinear, NativeLinear, NativeLinear]
    """The products of q, k and v; of o; of gate and up; of down."""
    input_norm: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    attention_norm: Tensor | None
    """The weights of the norm of attention's output, computed before the output is added to the residual."""
    post_norm: Tensor | None
    feed_forward_norm: Tensor | None
    angles: tuple[Tensor, Tensor] | None
    """cos and sin of every row of angles, [rows, head_dim / 2] float32; None where the layer does not rotate."""
    window: int | None
    """Positions that each position sees, its own included; None: all before it."""
    table: int
    """The index of the block table, among the tables of each chunk, that has the layer's blocks."""
    cache: int
    """The index of the layer's cache, which may be shared with layers of other block tables."""


class DecoderShape(NamedTuple):
    """The sizes and factors of a model, as `engine.config.ModelConfig` has them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    num_blocks: int
    """Blocks of each cache."""
    cache_dtype: torch.dtype
    activation: str
    """The activation's name: `silu` or `gelu_tanh`."""
    eps: float
    embedding_multiplier: float = 1.0
    query_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    softcap: float = 0.0
    """The bound of scores; 0: none."""
    has_whole_norms: bool = False
    """True where queries and keys are normalized over all heads together; False: head by head."""


class NativeDecoder:
    """All layers of a model with their cache. The tensors given to it are held until it is freed."""

    def __init__(
        self,
        library: NativeLibrary,
        shape: DecoderShape,
        embed: NativeMatrix,
        layers: Sequence[LayerTensors],
        norm: Tensor,
        path: str | None = None,
        query_factors: Tensor | None = None,
    ) -> None:
        """Make the decoder and its cache.

        embed: the matrix [V, H] whose rows tokens become.
        norm: the last norm, [H] float32.
        path: as for `NativeLinear`.
        query_factors: the factor of queries at each position, [max_position] float32; None: 1.

        Raises ValueError: when the kernels do not compute a model of this shape.
        """
        cache_dtype = dtype_number(shape.cache_dtype)
        self._functions = library.functions
        self._hidden_size = embed.shape[1]
        block_size = self._functions.lorikeet_cache_block_size(shape.num_kv_heads, shape.head_dim)
        # NumPy takes memory from the system that has no pages before it is written.
        numbers = np.float32 if shape.cache_dtype == torch.float32 else np.uint16
        num_caches = 1 + max(layer.cache for layer in layers)
        caches = [np.zeros(shape.num_blocks * block_size, dtype=numbers) for _ in range(num_caches)]
        self._layers = (_Layer * len(layers))(*(_layer(layer, caches[layer.cache].ctypes.data) for layer in layers))
        self.num_tables = 1 + max(layer.table for layer in layers)
        self._model = _Model(
            len(layers),
            self.num_tables,
            self._hidden_size,
            shape.intermediate_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.max_position,
            embed.address,
            norm.data_ptr(),
            cache_dtype,
            ("silu", "gelu_tanh").index(shape.activation),
            shape.has_whole_norms,
            _address(query_factors),
            shape.eps,
            shape.embedding_multiplier,
            shape.query_multiplier,
            shape.residual_multiplier,
            shape.softcap,
        )
        self._path = -1 if path is None else library.paths.index(path)
        self._tensors = (embed, list(layers), norm, caches, query_factors)
        if not self._take_decoder():
            raise ValueError(f"the native kernels do not compute a model of {shape}")

    def twin(self) -> NativeDecoder:
        """Return a decoder of the same weights and the same cache, with memory of its own for a step.

        A step of one may pause while steps of the other are computed, as long as no sequence is in both.

        Raises MemoryError: when there is no memory for it.
        """
        twin = copy(self)
        if not twin._take_decoder():
            raise MemoryError("no memory for a second decoder")
        return twin

    def forward(
        self,
        token_ids: NDArray[np.int64],
        chunks: NDArray[np.int64],
        blocks: NDArray[np.int32],
        output_rows: NDArray[np.int64],
        hidden: Tensor,
    ) -> None:
        """Compute a step of N rows, and write the hidden states of output_rows to hidden [W, H] float32.

        token_ids [N]; chunks [C, CHUNK_FIELDS], of consecutive positions of one sequence each, in the order of their
        rows; blocks: the blocks of all chunks, one after the other, each table by table; output_rows [W]. Factors that
        the chunks name, and the matrices that these name, must stay until the next call of `forward` has returned.

        Raises MemoryError: when there is no memory for the step.
        """
        self.begin(token_ids, chunks, blocks, output_rows, hidden).go_on()

    def begin(
        self,
        token_ids: NDArray[np.int64],
        chunks: NDArray[np.int64],
        blocks: NDArray[np.int32],
        output_rows: NDArray[np.int64],
        hidden: Tensor,
    ) -> NativeStep:
        """Begin a step as `forward` describes it, and return the step. A paused step of this decoder is dropped.

        Raises MemoryError: when there is no memory for the step.
        """
        step = NativeStep(self._functions, self._decoder, (token_ids, chunks, blocks, output_rows, hidden))
        if self._functions.lorikeet_decoder_begin(self._decoder, step.address):
            raise MemoryError(f"no memory for a step of {len(token_ids)} rows")
        return step

    def _take_decoder(self) -> bool:
        """Make the native decoder, which is freed with this object.

        Return False if the kernels do not compute such a model, or there is no memory for it.
        """
        decoder = self._functions.lorikeet_decoder_new(ctypes.byref(self._model), self._layers, self._path)
        if decoder is None:
            return False
        self._decoder = decoder
        weakref.finalize(self, _free, self._functions, decoder, self._tensors)
        return True


class NativeStep:
    """A step that a decoder computes in one or more parts. It holds the arrays that the decoder reads meanwhile."""

    def __init__(
        self,
        functions: ctypes.CDLL,
        decoder: int,
        arrays: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], Tensor],
    ) -> None:
        self._functions = functions
        self._decoder = decoder
        self._arrays = arrays
        token_ids, chunks, blocks, output_rows, hidden = arrays
        self._step = _Step(
            token_ids.ctypes.data,
            chunks.ctypes.data,
            blocks.ctypes.data,
            output_rows.ctypes.data,
            hidden.data_ptr(),
            len(token_ids),
            len(chunks),
            len(blocks),
            len(output_rows),
        )

    @property
    def address(self) -> int:
        """The address of the native struct."""
        return ctypes.addressof(self._step)

    def go_on(self, pause: int | None = None, seconds: float = math.inf) -> bool:
        """Compute the step, or a part of it; return True once it is done, False where it pauses.

        The step pauses after the job under way once `seconds` are over, or once the int32 at the address `pause` is not
        0.
        """
        threads = torch.get_num_threads()
        return bool(self._functions.lorikeet_decoder_go_on(self._decoder, self.address, threads, pause, seconds))


def _free(functions: ctypes.CDLL, decoder: int, tensors: object) -> None:
    """Free a decoder. tensors: the tensors that the decoder's threads may read until it is freed."""
    functions.lorikeet_decoder_free(decoder)


class _Layer(ctypes.Structure):
    _fields_ = [
        ("products", _POINTER * 4),
        ("biases", _POINTER * 4),
        *((name, _POINTER) for name in ("input_norm", "q_norm", "k_norm", "attention_norm", "post_norm")),
        *((name, _POINTER) for name in ("feed_forward_norm", "cos", "sin", "cache")),
        ("window", _INT64),
        ("table", _INT64),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *(
            (name, _INT64)
            for name in ("num_layers", "num_tables", "hidden", "intermediate", "num_heads", "num_kv_heads")
        ),
        ("head_dim", _INT64),
        ("max_position", _INT64),
        ("embed", _POINTER),
        ("norm", _POINTER),
        *((name, _INT64) for name in ("cache_dtype", "activation", "has_whole_norms")),
        ("query_factors", _POINTER),
        *((name, _DOUBLE) for name in ("eps", "embedding_multiplier", "query_multiplier", "residual_multiplier")),
        ("softcap", _DOUBLE),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("tokens", "chunks", "blocks", "output_rows", "hidden")),
        *((name, _INT64) for name in ("num_rows", "num_chunks", "num_block_ids", "num_outputs")),
    ]


def _layer(layer: LayerTensors, cache: int) -> _Layer:
    cos, sin = layer.angles or (None, None)
    norms = (layer.input_norm, layer.q_norm, layer.k_norm, layer.attention_norm, layer.post_norm)
    return _Layer(
        (_POINTER * 4)(*(product.matrix for product in layer.products)),
        (_POINTER * 4)(*(_address(product.bias) for product in layer.products)),
        *(_address(tensor) for tensor in (*norms, layer.feed_forward_norm, cos, sin)),
        cache,
        layer.window or 0,
        layer.table,
    )


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
