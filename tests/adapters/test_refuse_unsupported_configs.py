"""A configuration that would be computed wrongly is refused, and the refusal names the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.errors import AdapterRejected
from adapters.peft_format import read_adapter
from tests.adapters.folders import CONFIG, write_adapter

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "use_dora: DoRA is not supported"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "lora_bias": ({"lora_bias": True}, "lora_bias"),
    "bias": ({"bias": "all"}, "bias is 'all'"),
    "activated_lora": ({"alora_invocation_tokens": [1]}, "activated LoRA"),
    "fan_in_fan_out": ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    "trained_tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    "parameters_are_a_text": ({"target_parameters": "experts.gate_up_proj"}, "`$.target_parameters`"),
    "layer_replication": ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    "other_targets": ({"target_modules": ["bogus_proj"]}, "target_modules does not name it"),
    "targets_are_a_number": ({"target_modules": 5}, "`$.target_modules`"),
    "other_layers": ({"layers_to_transform": [7]}, "layers_to_transform leaves this layer out"),
    "unknown_option": ({"use_future_lora": True}, "use_future_lora: this option is not known"),
    "other_method": ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    "other_task": ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
    "pissa": ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights is 'pissa_niter_16'"),
    "rank_zero": ({"r": 0}, "the rank of 'r' is 0"),
    "rank_too_large": ({"r": 257}, "the rank of 'r' is 257; it must be 1 to 256"),
    "pattern_rank_negative": ({"rank_pattern": {"q_proj": -2}}, "the rank of 'q_proj' is -2"),
    "rank_is_text": ({"r": "2"}, "`$.r`"),
    "rank_is_bool": ({"r": True}, "`$.r`"),
    "alpha_is_huge": ({"lora_alpha": 1e300}, "the alpha of 'lora_alpha'"),
    "alpha_is_a_huge_integer": ({"lora_alpha": 10**400}, "lora_alpha"),
    "pattern_is_a_list": ({"rank_pattern": ["q_proj"]}, "`$.rank_pattern`"),
    "pattern_backtracks": ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern: the key '(a+)+$'"),
    "pattern_costs_too_much": (
        {"rank_pattern": {f"{number}" + ".*" * 100 + "x": 2 for number in range(2000)}},
        "too many keys or repeats",
    ),
    "pattern_has_many_keys": (
        {"rank_pattern": {f"module_{number}": 2 for number in range(3000)}},
        "rank_pattern has 3000 keys",
    ),
    "pattern_is_no_expression": ({"rank_pattern": {"[9-0]": 2}}, "rank_pattern: the key '[9-0]'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_would_be_computed_wrongly_is_refused_by_name(case: str, tmp_path: Path) -> None:
    change, reason = REFUSED[case]
    with pytest.raises(AdapterRejected) as refusal:
        read_adapter(write_adapter(tmp_path, {**CONFIG, **change}))
    assert any("adapter_config.json" in found and reason in found for found in refusal.value.reasons)


@pytest.mark.parametrize("option", ["r", "lora_alpha", "peft_type"])
def test_an_option_without_which_nothing_can_be_computed_must_be_there(option: str, tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != option}
    with pytest.raises(AdapterRejected, match=option):
        read_adapter(write_adapter(tmp_path, config))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"r": NaN}', "NaN is not a JSON number"),
        (b'{"r": 2, "r": 4}', "the key 'r' occurs twice"),
        (b'{"r":' + b"[" * 200_000, "nested too deeply"),
        (b'{"r": "\xff"}', "is not valid JSON"),
        (b" " * (1024 * 1024 + 1), "is over 1048576 bytes"),
    ],
    ids=["empty", "list", "nan", "duplicate", "deep", "not_utf8", "huge"],
)
def test_a_config_that_is_not_one_json_object_is_refused(raw: bytes, reason: str, tmp_path: Path) -> None:
    write_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(raw)
    with pytest.raises(AdapterRejected, match=r"adapter_config\.json") as refusal:
        read_adapter(tmp_path)
    assert reason in str(refusal.value)


def test_all_wrong_options_are_listed_at_once(tmp_path: Path) -> None:
    config = {**CONFIG, "use_dora": True, "bias": "all", "r": 999, "modules_to_save": ["lm_head"]}
    with pytest.raises(AdapterRejected) as refusal:
        read_adapter(write_adapter(tmp_path, config))
    text = str(refusal.value)
    assert all(option in text for option in ("use_dora", "bias", "999", "modules_to_save"))
    assert len(refusal.value.reasons) == 4


def test_the_list_of_reasons_is_bounded(tmp_path: Path) -> None:
    config = {**CONFIG, **{f"option_{number}": True for number in range(1000)}}
    with pytest.raises(AdapterRejected) as refusal:
        read_adapter(write_adapter(tmp_path, config))
    assert len(refusal.value.reasons) == 21
    assert refusal.value.reasons[-1] == "and 980 more"
