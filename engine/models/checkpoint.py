"""From a folder of safetensors files to a base model's weights, on their device and in the engine's dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel
from engine.models.weights import LayerWeights, MakeNorm, ModelWeights, Norm
from kernels.linear import Linear
from kernels.norm import RmsNorm


class _Checkpoint:
    """Tensors by name over all files of a folder; remembers which were never asked for."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, stack: ExitStack) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise UnsupportedModel(f"{folder} holds no *.safetensors file")
        self._files = {}
        for path in paths:
            file = stack.enter_context(safe_open(path, framework="pt"))
            self._files.update(dict.fromkeys(file.keys(), file))
        self._unread = set(self._files)
        self._dtype = dtype
        self._device = device

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises UnsupportedModel when the tensor is missing or has another shape."""
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint lacks {name}")
        self._unread.discard(name)
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise UnsupportedModel(f"{name} is {list(tensor.shape)}, the config asks for {list(shape)}")
        return tensor.to(self._device, self._dtype)

    def unread(self) -> Iterator[str]:
        return (name for name in sorted(self._unread) if not name.endswith("rotary_emb.inv_freq"))


def load_weights(
    model_dir: str | Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    make_norm: MakeNorm = RmsNorm,
) -> ModelWeights:
    """Read and fuse all weights. Raises UnsupportedModel on a missing, misshapen or unknown tensor."""
    with ExitStack() as stack:
        checkpoint = _Checkpoint(Path(model_dir), dtype, device, stack)
        take, hidden = checkpoint.take, config.hidden_size
        embed = take("model.embed_tokens.weight", (config.vocab_size, hidden))
        layers = [_layer(checkpoint, config, index, make_norm) for index in range(config.num_layers)]
        norm = make_norm(take("model.norm.weight", (hidden,)), config.rms_norm_eps)
        tied = config.tie_word_embeddings
        lm_head = embed if tied else take("lm_head.weight", (config.vocab_size, hidden))
        unknown = [name for name in checkpoint.unread() if not (tied and name == "lm_head.weight")]
        if unknown:
            raise UnsupportedModel(f"the checkpoint has tensors the config does not explain: {', '.join(unknown[:5])}")
    return ModelWeights(embed, layers, norm, Linear(lm_head))


def _layer(checkpoint: _Checkpoint, config: ModelConfig, index: int, make_norm: MakeNorm) -> LayerWeights:
    prefix, hidden = f"model.layers.{index}", config.hidden_size

    def matrix(block: str, projection: str) -> Tensor:
        width, height = config.adapter_targets()[projection]
        return checkpoint.take(f"{prefix}.{block}.{projection}.weight", (height, width))

    def bias(projection: str) -> Tensor:
        return checkpoint.take(f"{prefix}.self_attn.{projection}.bias", (config.adapter_targets()[projection][1],))

    def norm(name: str, size: int) -> Norm:
        return make_norm(checkpoint.take(f"{prefix}.{name}.weight", (size,)), config.rms_norm_eps)

    qkv = ("q_proj", "k_proj", "v_proj")
    return LayerWeights(
        input_norm=norm("input_layernorm", hidden),
        qkv=Linear(
            torch.cat([matrix("self_attn", name) for name in qkv]),
            torch.cat([bias(name) for name in qkv]) if config.qkv_bias else None,
        ),
        q_norm=norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
        o=Linear(matrix("self_attn", "o_proj"), bias("o_proj") if config.o_bias else None),
        post_norm=norm("post_attention_layernorm", hidden),
        gate_up=Linear(torch.cat([matrix("mlp", "gate_proj"), matrix("mlp", "up_proj")])),
        down=Linear(matrix("mlp", "down_proj")),
    )
