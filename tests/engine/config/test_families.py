"""The table of families in engine/README.md is made of the engine's own table, which names transformers' classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from adapters.patterns.module_names import is_of_expert
from engine.config import load_model_config
from engine.config.families import FAMILIES
from engine.config.gguf_file import ARCHITECTURES
from tests.engine.models.tiny import FAMILIES as TRIED
from tests.engine.models.tiny import TINY

README = Path(__file__).parents[3] / "engine" / "README.md"
BLOCKS = {*ARCHITECTURES, "mistral"}
"""Families whose GGUF files keep their blocks; those of Mistral are of llama.cpp's architecture `llama`."""


def test_the_readme_has_a_row_for_each_family(tmp_path: Path) -> None:
    page = README.read_text().splitlines()
    for name, family in FAMILIES.items():
        tiny = next(config(**(TINY | changes)) for config, _, changes in TRIED.values() if config.model_type == name)
        tiny.save_pretrained(tmp_path)
        model = load_model_config(tmp_path)
        modules = [name for name in model.adapter_targets() if not is_of_expert(name)]
        targets = ", ".join(module.split(".")[-1].removesuffix("_proj") for module in modules)
        targets += "" if model.experts is None else "; of experts gate, up, down"
        is_native = model.recurrence is None
        quantized = "int8, int4, gguf" if name in BLOCKS else "int8, int4" if is_native else "none"
        row = f"| `{name}` | {family.examples} | {family.differences} | {targets} | {quantized} |".replace(
            "|  |", "| |"
        )
        assert row in page, row
    assert sum(line.startswith("| `") and line.endswith(("int4 |", "gguf |", "none |")) for line in page) == len(
        FAMILIES
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_a_class_of_transformers_by_this_name(name: str) -> None:
    model = getattr(transformers, FAMILIES[name].architecture)
    assert model.config_class.model_type == name
