"""Hostile cases: configurations that would be computed wrongly or hurt their reader, beside good weights."""

from __future__ import annotations

from typing import Any

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.hostile.case import Case, config_bytes, folder_of, weights_bytes


def raw(config: bytes, reason: str) -> Case:
    return Case(folder_of({CONFIG_NAME: config, WEIGHTS_NAME: weights_bytes()}), reason)


def options(reason: str, **changes: Any) -> Case:
    return raw(config_bytes(**changes), reason)


CASES: dict[str, Case] = {
    "r = 10^9": options("the rank of 'r' is 1000000000; it must be 1 to 256", r=10**9),
    "r beyond 64 bits": options("the rank of 'r' is 1000000000000000000000000000000", r=10**30),
    "r = 0": options("the rank of 'r' is 0", r=0),
    "r = -2": options("the rank of 'r' is -2", r=-2),
    "r is a bool": options("Expected `int`, got `bool` - at `$.r`", r=True),
    "r is a fraction": options("$.r", r=2.5),
    "r is a text": options("Expected `int`, got `str` - at `$.r`", r="2"),
    "r is null": options("$.r", r=None),
    "r of a pattern is 10^9": options("the rank of 'q_proj' is 1000000000", rank_pattern={"q_proj": 10**9}),
    "no r": raw(b'{"peft_type": "LORA", "lora_alpha": 4}', "r is missing"),
    "alpha below zero": options("scales it by -2; it must be above zero", lora_alpha=-4),
    "alpha of a pattern below zero": options("must be above zero", alpha_pattern={"q_proj": -1}),
    "alpha is zero": options("scales it by 0; it must be above zero", lora_alpha=0),
    "alpha is nan": raw(config_bytes(lora_alpha=float("nan")), "NaN is not a JSON number"),
    "alpha is infinite": raw(
        config_bytes().replace(b'"lora_alpha": 4', b'"lora_alpha": 1e999'), "alpha of 'lora_alpha'"
    ),
    "alpha is 10^300": options("its magnitude must be at most 1e+06", lora_alpha=1e300),
    "alpha of 5,000 digits": raw(config_bytes().replace(b": 4", b": " + b"9" * 5000), "is not valid JSON"),
    "dora": options("use_dora: DoRA is not supported", use_dora=True),
    "modules_to_save": options("modules_to_save: fully trained modules", modules_to_save=["lm_head"]),
    "bias": options("bias is 'all'; supported: 'none'", bias="all"),
    "lora_bias": options("lora_bias: a bias on lora_B", lora_bias=True),
    "trained tokens": options("trained token embeddings are not supported", trainable_token_indices=[3]),
    "replicated layers": options("layer_replication", layer_replication=[[0, 2], [1, 2]]),
    "a later peft's option": options("use_future_lora: this option is not known", use_future_lora=True),
    "an option named like a terminal's escape": options("\\x1b[2J: this option is not known", **{"\x1b[2J": 1}),
    "another method": options("peft_type is 'IA3'; supported: 'LORA'", peft_type="IA3"),
    "an unknown method": options("peft_type is '__import__'; supported", peft_type="__import__"),
    "no method": raw(b'{"r": 2, "lora_alpha": 4}', "peft_type is ''"),
    "a classifier": options("task_type is 'SEQ_CLS'", task_type="SEQ_CLS"),
    "pissa": options("init_lora_weights is 'pissa'", init_lora_weights="pissa"),
    "targets that leave the tensors out": options("target_modules does not name it", target_modules=["k_proj"]),
    "layers that leave the tensors out": options("layers_to_transform leaves this layer out", layers_to_transform=[1]),
    "a pattern that backtracks": options("the key '(a+)+$'", rank_pattern={"(a+)+$": 2}),
    "patterns that take too long to match": options(
        "too many keys or repeats", alpha_pattern={f"{number}" + ".*" * 100 + "x": 2 for number in range(2000)}
    ),
    "thirty thousand patterns": options(
        "rank_pattern has 30000 keys", rank_pattern=dict.fromkeys(map(str, range(30_000)), 2)
    ),
    "empty": raw(b"", "is not valid JSON"),
    "a list": raw(b"[]", "is not a JSON object"),
    "a pickle": raw(b"\x80\x04\x95" + bytes(100), "is not valid JSON"),
    "not utf-8": raw(b'{"r": "\xff"}', "is not valid JSON"),
    "half a character": options("is not valid JSON: 'utf-8' codec", base_model_name_or_path="\ud800"),
    "utf-16": raw(config_bytes().decode().encode("utf-16"), "is not valid JSON"),
    "a key twice": raw(b'{"r": 2, "r": 4}', "the key 'r' occurs twice"),
    "a key twice, escaped": raw(b'{"r": 2, "\\u0072": 4}', "the key 'r' occurs twice"),
    "deep lists": raw(b'{"r":' + b"[" * 900_000, "nested too deeply"),
    "deep objects": raw(b'{"r":' * 150_000, "nested too deeply"),
    "two megabytes": raw(config_bytes() + b" " * (2 << 20), "is over 1048576 bytes"),
    "a megabyte of keys": options("and 29980 more", **{f"x{number}": True for number in range(30_000)}),
    "text after the object": raw(config_bytes() + b"{}", "is not valid JSON: Extra data"),
}
