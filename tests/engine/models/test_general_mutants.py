"""Hostile configs and weights of models that transformers computes are refused in words, or computed.

With --full 10,000 mutants of each kind.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import UnsupportedModel, load_model_config
from engine.models.general.build import load_general
from tests.engine.models.general import FAMILIES, save_general

CPU = torch.device("cpu")
VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2, 3, 7, 10**6, 2**31, 2**63, 1e308, 0.5, True, False, "x", "", [], {}, [1], [None], {"a": 1}),
    *(["full_attention"] * 3, ["sliding_attention"] * 3, ["linear_attention"] * 3),
    *({"rope_type": "dynamic"}, {"rope_type": "yarn", "factor": "x"}, {"rope_type": "longrope"}, {"rope_type": 7}),
)
OTHER_KEYS = ("quantization_config", "auto_map", "is_causal", "text_config", "layers_block_type", "eos_token_id")
NUM_MUTANTS, NUM_MUTANTS_FULL = 12, 10_000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        save_general(family, root / family)
    return [root / family for family in FAMILIES]


def is_served(folder: Path) -> bool:
    """Tell whether a folder is loaded; False where it is refused in words."""
    try:
        load_general(folder, load_model_config(folder, "transformers"), torch.float32, CPU)
    except UnsupportedModel as refused:
        assert str(refused)
        return False
    return True


def test_mutants_of_configs(folders: list[Path], full: bool) -> None:
    rnd, served = random.Random(5), 0
    count = NUM_MUTANTS_FULL if full else NUM_MUTANTS
    for _ in range(count):
        path = rnd.choice(folders) / "config.json"
        original = path.read_text()
        config = json.loads(original)
        for _ in range(rnd.choice((1, 1, 2, 3))):
            key = rnd.choice([*sorted(config), *OTHER_KEYS])
            value = config.pop(key, None)
            if isinstance(value, int) and rnd.random() < 0.3:
                config[key] = value * rnd.choice((2, -1, 10**5))
            elif rnd.random() < 0.8:
                config[key] = rnd.choice(VALUES)
        path.write_text(json.dumps(config))
        served += is_served(path.parent)
        path.write_text(original)
    assert 0 < served < count


def test_mutants_of_weights(folders: list[Path], full: bool) -> None:
    """Bytes of a file's head are changed, the file is cut, or has numbers that are none."""
    rnd, served = random.Random(6), 0
    count = NUM_MUTANTS_FULL if full else NUM_MUTANTS
    for _ in range(count):
        path = rnd.choice(folders) / "model.safetensors"
        original = path.read_bytes()
        content = bytearray(original)
        size = int.from_bytes(content[:8], "little")
        match rnd.randrange(4):
            case 0:
                content[rnd.randrange(size + 8)] = rnd.randrange(256)
            case 1:
                del content[rnd.randrange(len(content)) :]
            case 2:
                place = content.find(
                    rnd.choice((b'"shape":[', b"data_offsets", b".weight", b"F32")), rnd.randrange(size)
                )
                content[place + 9 : place + 10] = rnd.choice((b"9", b"0", b"]", b'"'))
            case 3:
                place = rnd.randrange(size + 8, len(content) - 4)
                content[place : place + 4] = rnd.choice((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f"))
        path.write_bytes(content)
        served += is_served(path.parent)
        path.write_bytes(original)
    assert served < count


def test_a_config_that_asks_for_more_than_the_files_have_takes_no_memory(folders: list[Path]) -> None:
    for key, value in (("hidden_size", 1 << 24), ("intermediate_size", 1 << 24), ("vocab_size", 1 << 30)):
        path = folders[0] / "config.json"
        original = path.read_text()
        path.write_text(json.dumps(json.loads(original) | {key: value}))
        with pytest.raises(UnsupportedModel, match=r"asks for|makes no model"):
            load_general(folders[0], load_model_config(folders[0], "transformers"), torch.float32, CPU)
        path.write_text(original)
