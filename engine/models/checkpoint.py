"""Reads a base model's weights from safetensors files or a GGUF file, to their device and in the engine's dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel
from engine.config.gguf_file import FILE_NAME, gguf_of
from engine.lora.layout import in_order, part_of
from engine.models.expert_layout import ExpertPart, expert_part, mxfp4_numbers
from engine.models.gguf import GgufWeights
from engine.models.packed.files import PackedFiles
from engine.models.weights import (
    GroupedInTurn,
    MakeEmbedding,
    MakeGrouped,
    MakeLinear,
    MakeNorm,
    ModelWeights,
    StackedMatrices,
    assemble,
    plain_embedding,
    plain_grouped,
    plain_linear,
)
from kernels.norm import RmsNorm

CLASSIFIER = "score.weight"
"""The name of the matrix by which a decoder scores, where it is a classifier."""

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
ROWS_AT_ONCE = 4096
"""Rows that are compared at once, so that little memory is taken."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


class _File(Protocol):
    """An open file of tensors, with the methods of safetensors' own."""

    def get_slice(self, name: str) -> Any:
        """Return a view that reads the rows of a tensor that an index names, and no others."""


WRAPPED = "model.language_model."
"""The prefix of the names of a text model's tensors in a model for text and images."""


class _Renamed:
    """A file of which one tensor goes by another name."""

    def __init__(self, file: _File, name: str) -> None:
        self._file, self._name = file, name

    def get_slice(self, name: str) -> Any:
        return self._file.get_slice(self._name)


class _Checkpoint:
    """Tensors by name over all files of a folder; remembers which were never asked for."""

    def __init__(
        self, folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, stack: ExitStack
    ) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        blocks = gguf_of(folder)
        if not paths and blocks is None:
            raise UnsupportedModel(f"{folder} holds neither *.safetensors nor {FILE_NAME}")
        self._files: dict[str, _File] = {}
        if blocks is not None:
            weights = GgufWeights(blocks, config)
            self._files = dict.fromkeys(weights.keys(), weights)
        elif config.quantized is not None:
            packed = stack.enter_context(PackedFiles(folder, config))
            self._files, paths = dict.fromkeys(packed.keys(), packed), []
        for path in paths:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise UnsupportedModel(f"{path} cannot be read: {error}") from None
            self._files.update(dict.fromkeys(file.keys(), file))
        if "embed_tokens.weight" in self._files:  # as a model without a head was saved
            self._files = {f"model.{name}": _Renamed(file, name) for name, file in self._files.items()}
        self._files |= {
            name.replace(WRAPPED, "model.", 1): _Renamed(self._files.pop(name), name)
            for name in [each for each in self._files if each.startswith(WRAPPED)]
        }
        self._unread = set(self._files)
        self._config = config
        self._dtype = dtype
        self._device = device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of the checkpoint by its name.

        Raises UnsupportedModel: when the tensor is missing or has another shape.
        """
        of_expert = expert_part(name, shape, self._config.experts, self._files)
        if of_expert is not None:
            return self._take_expert(of_expert, shape)
        part = part_of(name, self._config) if name not in self._files else None
        source = name if part is None else part.source
        found = self._slice(source, shape if part is None else (part.num_rows, *shape[1:]))
        tensor: Tensor = found[:] if part is None else found[part.first : part.first + shape[0]]
        return self._numbers(source, in_order(name, tensor, self._config))

    def _take_expert(self, part: ExpertPart, shape: tuple[int, ...]) -> Tensor:
        found = self._slice(part.source, shape if part.expert is None else part.shape)
        tensor: Tensor = found[:] if part.expert is None else found[part.expert]
        if part.scales:
            scales = self._slice(part.scales, part.shape[:-1])[part.expert]
            for name, each in ((part.source, tensor), (part.scales, scales)):
                if each.dtype != torch.uint8:
                    raise UnsupportedModel(f"{name} is in {each.dtype}, and MXFP4 is in U8".replace("torch.", ""))
            tensor = mxfp4_numbers(tensor[part.rows], scales[part.rows])[:, : shape[1]]
        elif part.is_transposed:
            tensor = tensor[:, part.rows].T.contiguous()
        elif part.expert is not None:
            tensor = tensor[part.rows]
        return self._numbers(part.source, tensor)

    def _numbers(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor in the engine's dtype, on its device.

        Raises UnsupportedModel: when it is not of floating-point numbers, or some are not finite in that dtype.
        """
        if not tensor.is_floating_point():
            raise UnsupportedModel(f"{name} is in {tensor.dtype}, not in floating-point numbers".replace("torch.", ""))
        found = tensor.to(self._device, self._dtype)
        if found.numel() and not bool(torch.stack(found.aminmax()).isfinite().all()):
            raise UnsupportedModel(f"{name} has numbers that are not finite in {self._dtype}".replace("torch.", ""))
        return found

    def _slice(self, source: str, shape: tuple[int, ...]) -> Any:
        """Return a view that reads the parts of a tensor that an index names, and note that the tensor was asked for.

        Raises UnsupportedModel: when the tensor is missing or has another shape.
        """
        if source not in self._files:
            raise UnsupportedModel(f"the checkpoint lacks {source}")
        self._unread.discard(source)
        found = self._files[source].get_slice(source)
        given = tuple(found.get_shape() if hasattr(found, "get_shape") else found.shape)
        if given != shape:
            raise UnsupportedModel(f"{source} is {list(given)}, the config asks for {list(shape)}")
        return found

    def note(
        self, make: Callable[Concatenate[StackedMatrices, Given], Made]
    ) -> Callable[Concatenate[StackedMatrices, Given], Made]:
        """Return `make`, wrapped to record that its matrices were asked for, since `make` may read them elsewhere."""

        def made(matrices: StackedMatrices, /, *given: Given.args, **named: Given.kwargs) -> Made:
            for name, shape in zip(matrices.names, matrices.shapes, strict=True):
                self._unread.difference_update(self._sources(name, shape))
            return make(matrices, *given, **named)

        return made

    def _sources(self, name: str, shape: tuple[int, int]) -> Iterator[str]:
        """Yield the names of the tensors that a matrix is made of."""
        of_expert = expert_part(name, shape, self._config.experts, self._files)
        part = part_of(name, self._config)
        if of_expert is not None:
            yield of_expert.source
            yield of_expert.scales
            return
        yield name
        if part is not None:
            yield part.source

    def check_tied(self) -> None:
        """Check that a head which the config ties to the embedding is the embedding, where the checkpoint has both.

        transformers takes a head of its own then, whatever the config says; earlier versions and other engines do not.

        Raises UnsupportedModel: when they differ.
        """
        has_head = self._config.task.kind == "text" or self._config.task.scored_by == "tokens"
        if not (self._config.tie_word_embeddings and has_head and {HEAD, EMBEDDING} <= self._files.keys()):
            return
        head, embedding = (self._files[name].get_slice(name) for name in (HEAD, EMBEDDING))
        num_rows = self._config.vocab_size
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            if not torch.equal(head[rows], embedding[rows]):
                raise UnsupportedModel(
                    f"config.json: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING} in the checkpoint"
                )

    def unread(self) -> Iterator[str]:
        unused = self._config.unused
        return (
            name
            for name in sorted(self._unread)
            if not name.endswith("rotary_emb.inv_freq") and not name.startswith(unused)
        )


def load_weights(
    model_dir: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    make_norm: MakeNorm = RmsNorm,
    make_linear: MakeLinear = plain_linear,
    make_embedding: MakeEmbedding = plain_embedding,
    make_grouped: MakeGrouped = plain_grouped,
) -> ModelWeights:
    """Read and fuse all weights.

    make_norm, make_linear, make_embedding, make_grouped: the functions that make norms, products, embeddings and
    products of experts of the device.

    Raises UnsupportedModel: when a tensor is missing, misshapen or unknown.
    """
    with ExitStack() as stack:
        checkpoint = _Checkpoint(Path(model_dir), config, dtype, device, stack)
        linear, embedding = checkpoint.note(make_linear), checkpoint.note(make_embedding)
        weights = assemble(checkpoint.take, config, make_norm, linear, embedding, checkpoint.note(make_grouped))
        checkpoint.check_tied()
        tied = config.tie_word_embeddings
        unused = {*((HEAD,) if tied else ()), *((CLASSIFIER,) if config.task.scored_by else ())}
        unknown = [name for name in checkpoint.unread() if name not in unused]
        if unknown:
            raise UnsupportedModel(f"the checkpoint has tensors the config does not explain: {', '.join(unknown[:5])}")
    return weights


def read_classifier(model_dir: str | Path, config: ModelConfig) -> Tensor:
    """Return the row [1, hidden] by which a decoder with a classifier scores a text, on a CPU.

    Raises UnsupportedModel: when the row is missing, or misshapen.
    """
    with ExitStack() as stack:
        checkpoint = _Checkpoint(Path(model_dir), config, torch.float32, torch.device("cpu"), stack)
        return checkpoint.take(CLASSIFIER, (1, config.hidden_size)).clone()


@contextmanager
def weights_in_turn(
    model_dir: str | Path, config: ModelConfig, make_linear: MakeLinear, make_embedding: MakeEmbedding = plain_embedding
) -> Iterator[ModelWeights]:
    """Yield weights in float32 on a CPU whose layers are read one by one, each time that they are gone through.

    So a model that is larger than the memory can be computed: only one of a layer's experts is in memory at a time.

    make_linear, make_embedding: the functions that make products and embeddings.

    Raises UnsupportedModel: when a tensor is missing or misshapen.
    """
    with ExitStack() as stack:
        checkpoint = _Checkpoint(Path(model_dir), config, torch.float32, torch.device("cpu"), stack)
        grouped = partial(GroupedInTurn, make_linear)
        yield assemble(checkpoint.take, config, RmsNorm, make_linear, make_embedding, grouped, in_turn=True)
