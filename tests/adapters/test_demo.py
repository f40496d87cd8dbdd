"""The example adapters that ship with the product are what their list says and fit the demo model."""

from __future__ import annotations

import json

import pytest

from adapters.demo import DEMO, DemoAdapter
from adapters.demo.styles import STYLES, load_questions
from adapters.peft_format import check_fit, read_adapter
from adapters.ref import check_adapter_name

# SmolLM2-135M: 30 layers, hidden size 576, 9 heads and 3 key-value heads of 64.
NUM_LAYERS = 30
TARGETS = {
    "q_proj": (576, 576),
    "k_proj": (576, 192),
    "v_proj": (576, 192),
    "o_proj": (576, 576),
    "gate_proj": (576, 1536),
    "up_proj": (576, 1536),
    "down_proj": (1536, 576),
}
BY_NAME = {demo.name: demo for demo in DEMO}


@pytest.mark.parametrize("demo", DEMO, ids=lambda demo: demo.name)
def test_the_committed_weights_are_accepted_and_small(demo: DemoAdapter) -> None:
    check_adapter_name(demo.name)
    check_fit(read_adapter(demo.path), TARGETS, NUM_LAYERS)
    assert (demo.path / "adapter_model.safetensors").stat().st_size <= 2_000_000
    config = json.loads((demo.path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "smollm2-135m-instruct"


def test_the_three_demo_adapters_differ_in_ranks_projections_and_scalings() -> None:
    modules = {name: read_adapter(demo.path).modules for name, demo in BY_NAME.items()}
    assert {(module.projection, module.rank, module.scaling) for module in modules["pirate"]} == {
        ("q_proj", 8, 2.0),
        ("k_proj", 8, 2.0),
        ("v_proj", 8, 2.0),
        ("o_proj", 8, 2.0),
    }
    assert {(module.projection, module.rank, module.scaling) for module in modules["json"]} == {
        ("q_proj", 16, 4.0),
        ("v_proj", 16, 4.0),
    }
    assert {(module.projection, module.rank, module.scaling) for module in modules["memo"]} == {
        ("gate_proj", 4, 2.0),
        ("up_proj", 4, 2.0),
        ("down_proj", 6, 8 / 6),
    }


def test_every_training_answer_keeps_its_style_and_the_plain_answer_keeps_none() -> None:
    questions = load_questions()
    assert len({item.question for item in questions}) == len(questions) >= 80
    for style in STYLES.values():
        for item in questions:
            assert style.follows(style.render(item))
            assert not style.follows(item.answer)
