"""The same seed gives the same text, alone or among 31 neighbors that come and go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.protocol import GenerateRequest
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.tiny import save_tiny

KINDS: dict[str, dict[str, object]] = {
    "plain": {"temperature": 1.0},
    "hot-top-p": {"temperature": 1.7, "top_p": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 20, "min_p": 0.01},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "logit_bias": {5: 3.0}},
    "greedy": {"temperature": 0.0},
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny("llama", folder)
    return folder


def neighbors(count: int) -> list[GenerateRequest]:
    rnd = random.Random(9)
    kinds = list(KINDS.values())
    return [
        greedy(f"n{i}", [rnd.randrange(199) for _ in range(rnd.randrange(1, 60))], rnd.randrange(1, 40), seed=i, **kind)
        for i, kind in enumerate(rnd.choice(kinds) for _ in range(count))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbors_do_not_change_a_seeded_text(model_dir: Path, kind: str) -> None:
    config = engine_config(model_dir, model_dir / "store")
    asked = greedy("asked", range(10, 30), 32, seed=77, **KINDS[kind])
    alone = run_engine(config, [asked])["asked"]
    others = neighbors(31)
    later = {step: [other] for step, other in enumerate(others[8:], start=3)}
    among = run_engine(config, [*others[:4], asked, *others[4:8]], later)["asked"]
    assert len(alone.token_ids) == 32
    assert among.token_ids == alone.token_ids


def test_another_seed_gives_another_text_and_none_gives_any(model_dir: Path) -> None:
    config = engine_config(model_dir, model_dir / "store")
    seeds = {"a": 1, "b": 2, "c": 1, "d": None, "e": None}
    asked = [greedy(name, [3, 4, 5], 24, temperature=1.5, seed=seed) for name, seed in seeds.items()]
    texts = {name: tuple(answer.token_ids) for name, answer in run_engine(config, asked).items()}
    assert texts["a"] == texts["c"]
    assert len(set(texts.values())) == 4
