"""Hostile model folders, each made by its seed from a right one: wrong configs, weights, tokenizers, missing files."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
WRONG: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2, 3, 7, 33, 10**6, 2**31, 2**63, 10**30, 1e308, 0.5, -0.5, 1e-300, True, False, "x", "", "48"),
    *([], {}, [1], [None], [[]], {"a": 1}, {"": {}}, ["x"] * 3, "\x00", "\ud800", "é" * 300, "../../etc/passwd"),
    *(["full_attention"] * 3, ["sliding_attention"] * 3, ["linear_attention"] * 3, [0, 1, 2], [1.0] * 4, [128, 128]),
    *({"rope_type": "dynamic"}, {"rope_type": "yarn", "factor": "x"}, {"rope_type": "default", "rope_theta": 500.0}),
    *({"rope_type": "llama3", "factor": 2.0}, {"type": "su"}, {"rope_type": 7}, {"rope_type": "longrope"}),
    *({"quant_method": "mxfp4"}, {"quant_method": "fp8"}, {"quant_method": "awq", "bits": 4}, {"quant_method": "x"}),
    *(float("nan"), float("inf"), -float("inf"), [0] * 10**5, {str(each): each for each in range(2000)}),
)
KEYS = (
    *("quantization_config", "text_config", "vision_config", "auto_map", "architectures", "is_causal", "model_type"),
    *("n_shared_experts", "num_experts", "num_local_experts", "clip_qkv", "first_k_dense_replace", "n_group"),
    *("norm_topk_prob", "scoring_func", "swiglu_alpha", "sliding_window", "layer_types", "layers_block_type"),
    *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "use_qk_norm", "attention_bias"),
    *("rope_scaling", "rope_parameters", "partial_rotary_factor", "num_key_value_heads", "head_dim", "eos_token_id"),
    *("matryoshka_dimensions", "is_decoder", "tie_word_embeddings", "torch_dtype", "unknown_key", "num_labels"),
)
DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I32", "U8", "I8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "C64", "X", "")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
)


def make(seed: int, folder: Path, other: Path) -> tuple[str, list[str]]:
    """Change a copy of a right folder. Return the kind of the change, and the names of the changed files.

    other: a right folder of another family, from which contradictory keys are taken.
    """
    rnd = random.Random(seed)
    kinds: list[tuple[int, Callable[[Path, Path, random.Random], list[str]]]] = [
        (12, _config),
        (2, _config_text),
        (1, _other_json),
        (5, _header),
        (2, _bytes),
        (5, _tensors),
        (2, _files),
        (3, _tokenizer),
    ]
    change = rnd.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
    return change.__name__.strip("_"), change(folder, other, rnd)


def changed_value(value: Any, rnd: random.Random) -> Any:
    """Return a different value, sometimes one that is close."""
    chance = rnd.random()
    if isinstance(value, bool) and chance < 0.5:
        return not value
    if isinstance(value, int | float) and chance < 0.45:
        return value * rnd.choice((2, -1, 10**5, 10**12)) if chance < 0.15 else value + rnd.choice((1, -1, 2, 0.5))
    if isinstance(value, list) and value and chance < 0.4:
        return rnd.choice(
            (value[:-1], [*value, copy.deepcopy(value[0])], value[::-1], [copy.deepcopy(rnd.choice(WRONG)), *value[1:]])
        )
    return str(value)[:100] if chance > 0.95 else [value] if chance > 0.9 else copy.deepcopy(rnd.choice(WRONG))


def changed_object(raw: Any, rnd: random.Random, more: tuple[str, ...] = ()) -> None:
    """Change a JSON value in one place, at any depth.

    more: further strings that a changed value may become.
    """
    places = [raw]
    for place in places:
        inner = place.values() if isinstance(place, dict) else place if isinstance(place, list) else ()
        places += [each for each in inner if isinstance(each, dict | list) and each][:50]
    place = raw if rnd.random() < 0.6 else rnd.choice(places)
    if isinstance(place, list):
        if place:
            index = rnd.randrange(len(place))
            place[index] = changed_value(place[index], rnd)
        return
    key = rnd.choice([*sorted(place), *more]) if place or more else "x"
    if rnd.random() < 0.15:
        place.pop(key, None)
    else:
        place[key] = changed_value(place.get(key), rnd)


def _config(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    path = folder / "config.json"
    raw, others = json.loads(path.read_text()), json.loads((other / "config.json").read_text())
    for _ in range(rnd.choice((1, 1, 1, 2, 3))):
        if rnd.random() < 0.15:
            key = rnd.choice(sorted(others))
            raw[key] = others[key]
        else:
            changed_object(raw, rnd, KEYS)
    path.write_text(json.dumps(raw), encoding="utf-8")
    return ["config.json"]


def _config_text(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    path = folder / "config.json"
    path.write_bytes(changed_text(path.read_bytes(), rnd))
    return ["config.json"]


def changed_text(content: bytes, rnd: random.Random) -> bytes:
    """Return a text that is not valid JSON, or that readers understand differently."""
    place = rnd.randrange(len(content) + 1)
    number = content.find(b": ", place)
    number = content.find(b": ") if number < 0 else number
    head, tail = content[: number + 2], content[number + 2 :]
    return rnd.choice(
        (
            *(content[:place], b"", b"\xff\xfe" + content, b"\xef\xbb\xbf" + content, content + b"{}", b"[]", b"null"),
            *(b'"config"', b"[" * 10**5, b'{"a":' * 10**5, content[:place] + b"\x00" + content[place:], b"\x80\x81"),
            *(head + b"NaN, " + tail, head + b"9" * 5000 + tail, head + b"1e999, " + tail, head + b"[" * 2000 + tail),
            content.replace(b"{", b'{"num_hidden_layers": 1, ', 1),
            content.replace(b"{", b'{"model_type": "llama", ', 1),
            content[:place] + bytes([rnd.randrange(256)]) + content[place + 1 :],
        )
    )


def _other_json(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    """Change a JSON file other than the config, or add one that a model folder may have."""
    found = [path for path in folder.rglob("*.json") if path.name not in (*TOKENIZER_FILES, "config.json")]
    found += list(folder.glob("*_*/config.json"))
    path = rnd.choice([*found, folder / "hf_quant_config.json", folder / "modules.json"])
    raw: Any = json.loads(path.read_text()) if path.exists() else {"quantization": {"quant_algo": "FP8"}}
    if rnd.random() < 0.3:
        path.write_bytes(changed_text(json.dumps(raw).encode(), rnd))
    else:
        changed_object(raw, rnd, ("eos_token_id", "pooling_mode", "prompts"))
        path.write_text(json.dumps(raw), encoding="utf-8")
    return [str(path.relative_to(folder))]


def _header(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    """Change a tensor's entry in the header of a weights file, or the header as a whole."""
    path = folder / WEIGHTS
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = rnd.choice([key for key in sorted(head) if key != "__metadata__"])
    entry = head[name]
    first, last = entry["data_offsets"]
    match rnd.randrange(12):
        case 0:
            entry["shape"] = rnd.choice(([], [0], [-1, 48], [2**40, 2**40], [1.5], ["x"], None, [2**63], [1] * 100))
        case 1:
            entry["shape"] = [*entry["shape"][::-1], *rnd.choice(([], [1], [0], [2]))]
        case 2:
            entry["dtype"] = rnd.choice((*DTYPES, None, 7))
        case 3:
            entry["data_offsets"] = rnd.choice(
                ([last, first], [first], [-1, last], [first, 2**63], [0, last], [first, len(data) + 1], None, [0, 0])
            )
        case 4:
            entry.pop(rnd.choice(sorted(entry)))
        case 5:
            head[rnd.choice((f"{name}.x", "model.layers.999.x.weight", "\ud800", "", "x" * 10**5))] = head.pop(name)
        case 6:
            head["__metadata__"] = rnd.choice(({"format": 1}, [], None, {"format": "tf"}, {"x": "y" * 10**6}))
        case 7:
            head[name] = copy.deepcopy(rnd.choice(WRONG[:40]))
        case 8:
            head[f"{name}_more"] = entry
        case 9:
            del head[name]
        case _:
            changed_object(head, rnd)
    raw = json.dumps(head).encode()
    length = len(raw).to_bytes(8, "little")
    if rnd.random() < 0.15:
        length = rnd.choice((0, 1, 2**63, 2**64 - 1, 10**9, len(raw) - 1, len(raw) + len(data))).to_bytes(8, "little")
    path.write_bytes(length + raw + data)
    return [WEIGHTS]


def _bytes(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    """Change bytes of a weights file, truncate it, or write values that are not numbers (NaN, infinity)."""
    path = folder / WEIGHTS
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    match rnd.randrange(4):
        case 0:
            content[rnd.randrange(size + 8)] = rnd.randrange(256)
        case 1:
            del content[rnd.randrange(len(content)) :]
        case 2:
            content += bytes(rnd.randrange(1, 100))
        case 3:
            place = rnd.randrange(size + 8, len(content) - 4)
            content[place : place + 4] = rnd.choice((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"))
    path.write_bytes(content)
    return [WEIGHTS]


def _tensors(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    """Remove a tensor, change its name, shape or dtype, or add another tensor."""
    path = folder / WEIGHTS
    tensors = load_file(path)
    name = rnd.choice(sorted(tensors))
    tensor = tensors.pop(name)
    match rnd.randrange(10):
        case 1:
            tensors[name.replace("layers.", "layers.1", 1) + "x" * rnd.randrange(2)] = tensor
        case 2:
            tensors[name] = tensor[..., :-1].contiguous() if tensor.dim() else tensor.reshape(1)
        case 3:
            tensors[name] = torch.cat((tensor, tensor[:1])) if tensor.dim() else tensor.reshape(1, 1)
        case 4:
            beside = rnd.choice(("_more", "_scale", "_zero_point", ".bias"))
            tensors |= {name: tensor, f"{name}{beside}": tensor.clone()}
        case 5:
            dtypes = (torch.int8, torch.float32, torch.float16, torch.uint8, torch.int64, torch.float64, torch.bool)
            tensors[name] = tensor.to(rnd.choice((*dtypes, torch.complex64, torch.float8_e4m3fn)))
        case 6:
            tensors[name] = tensor.T.contiguous() if tensor.dim() == 2 else tensor.reshape(-1, 1)
        case 7:
            wrong = rnd.choice((float("nan"), float("inf"), -float("inf"), 3e38, 0.0))
            full = tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
            # By way of float32: in half precision 3e38 is an infinity.
            tensors[name] = torch.full(tensor.shape, wrong).to(tensor.dtype) if full else torch.zeros_like(tensor)
        case 8:
            tensors[name] = tensor.reshape(-1)[:0]
        case 9:
            second = rnd.choice(sorted(tensors))
            tensors |= {name: tensors[second].clone(), second: tensor}
    save_file(tensors, path, {"format": "pt"})
    return [WEIGHTS]


def _files(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    """Remove a file, empty it, replace it by a folder or a loop of links, or add another file."""
    path = folder / rnd.choice(("config.json", WEIGHTS, "generation_config.json", "tokenizer.json"))
    match rnd.randrange(7):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(b"")
        case 2:
            path.unlink()
            path.mkdir()
        case 3:
            path.unlink()
            path.symlink_to(path.name)
        case 4:
            path = folder / "z.safetensors"
            path.write_bytes((other / WEIGHTS).read_bytes())
        case 5:
            path = folder / "z.safetensors"
            path.write_bytes((folder / WEIGHTS).read_bytes()[:100])
        case 6:
            path = folder / "adapter_config.json"
            path.write_text("{}")
    return [path.name]


def _tokenizer(folder: Path, other: Path, rnd: random.Random) -> list[str]:
    path = folder / rnd.choice(TOKENIZER_FILES)
    if rnd.random() < 0.5:  # older folders have their tokens there
        config = json.loads((folder / "tokenizer_config.json").read_text())
        del config["added_tokens_decoder"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if path.suffix == ".jinja":
        text = path.read_text()
        place = rnd.randrange(len(text))
        path.write_text(rnd.choice((text[:place], text[:place] + "{{ x.y.z }}" + text[place:], "", "{% if %}", "{{")))
    elif rnd.random() < 0.25:
        path.write_bytes(changed_text(path.read_bytes(), rnd))
    else:
        raw = json.loads(path.read_text())
        for _ in range(rnd.choice((1, 1, 2))):
            changed_object(raw, rnd, ("extra_special_tokens", "chat_template", "additional_special_tokens"))
        path.write_text(json.dumps(raw), encoding="utf-8")
    return [path.name]
