"""The right model folders that hostile ones are made of: one of each family, kind of file and kind of task."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.engine.models.encoders import ENCODERS, save_decoder, save_encoder, write_modules
from tests.engine.models.general import FAMILIES as GENERAL
from tests.engine.models.general import save_general
from tests.engine.models.packing import METHODS, save_packed
from tests.engine.models.test_experts import packed
from tests.engine.models.tiny import FAMILIES, save_tiny

Make = Callable[[Path], object]
VOCAB_SIZE = 199
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _mxfp4(folder: Path) -> None:
    save_tiny("gpt-oss", folder, {"hidden_size": 64, "intermediate_size": 32})
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for index in range(3):
        for name in ("gate_up_proj", "down_proj"):
            blocks, scales = packed(tensors.pop(f"model.layers.{index}.mlp.experts.{name}"))
            tensors[f"model.layers.{index}.mlp.experts.{name}_blocks"] = blocks.contiguous()
            tensors[f"model.layers.{index}.mlp.experts.{name}_scales"] = scales.contiguous()
    save_file(tensors, path)
    _change(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]})


def _encoder(family: str, folder: Path, *, ranks: bool = False) -> None:
    save_encoder(family, folder, ranks=ranks)
    pooling: dict[str, Any] = {"pooling_mode_cls_token": True, "word_embedding_dimension": 48, "include_prompt": True}
    if not ranks:
        write_modules(folder, pooling=pooling, normalize=True, prompts={"query": "q: "}, max_seq_length=64)


def _decoder(kind: str, folder: Path) -> None:
    save_decoder(folder, kind)
    if kind == "embed":
        write_modules(folder, pooling={"pooling_mode_lasttoken": True}, normalize=True, max_seq_length=64)
    if kind == "tokens":
        write_modules(folder, tokens=(5, 6))


def _change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _general(family: str, folder: Path) -> None:
    save_general(family, folder)


BASES: dict[str, Make] = {
    **{name: partial(save_tiny, name) for name in FAMILIES},
    **{f"through transformers: {name}": partial(_general, name) for name in GENERAL},
    **{f"encoder: {name}": partial(_encoder, name) for name in ENCODERS},
    "ranks: bert": partial(_encoder, "bert", ranks=True),
    "ranks: modernbert": partial(_encoder, "modernbert", ranks=True),
    **{f"decoder: {kind}": partial(_decoder, kind) for kind in ("embed", "classifier", "tokens")},
    **{f"packed: {method}": partial(save_packed, method) for method in METHODS},
    "packed: mxfp4": _mxfp4,
}
GENERAL_PREFIX = "through transformers: "


def base_of(name: str, root: Path) -> Path:
    """Return the valid model folder of this name below a root; it is created at the first call."""
    folder = root / name.replace(": ", "-").replace(" ", "-")
    if not folder.exists():
        making = root / "making"
        shutil.rmtree(making, ignore_errors=True)
        torch.manual_seed(0)
        BASES[name](making)
        _write_tokenizer(making)
        making.rename(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer with the models' number of tokens, in the layouts of older and newer folders."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB_SIZE - 5]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in ("bos", "end", "user")])
    backend.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<|bos|>", "eos_token": {"content": "<|end|>", "lstrip": False, "__type": "AddedToken"}}
    added = {str(len(alphabet)): {"content": "<|bos|>", "special": True, "lstrip": False}}
    config = tokens | {"added_tokens_decoder": added, "extra_special_tokens": ["<|user|>"], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 512}))
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "added_tokens.json").write_text(json.dumps({"<|bos|>": len(alphabet)}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None, "do_sample": False}))
