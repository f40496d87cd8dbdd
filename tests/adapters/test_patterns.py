"""Keys of rank_pattern and alpha_pattern match what Python's `re` matches, at a bounded cost."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.errors import AdapterRejected
from adapters.patterns.lookup import ModulePatterns, pattern_errors
from adapters.peft_format import read_adapter
from tests.adapters.folders import CONFIG, Tensors, tensor, tensor_name, write_adapter

ATOMS = st.sampled_from(["a", "b", ".", r"\.", r"\d", r"\w", "[ab]", "[0-9_]", "[a-ce]", "1"])
QUANTIFIED = st.tuples(ATOMS, st.sampled_from(["", "", "*", "+", "?"])).map("".join)
ALTERNATIVES = st.lists(st.lists(ATOMS, min_size=1, max_size=3).map("".join), min_size=1, max_size=3).map("|".join)
GROUPS = st.tuples(st.sampled_from(["(", "(?:"]), ALTERNATIVES, st.just(")")).map("".join)
BRANCHES = st.lists(st.one_of(QUANTIFIED, QUANTIFIED, GROUPS), min_size=1, max_size=5).map("".join)
KEYS = st.tuples(
    st.sampled_from(["", "^"]), st.lists(BRANCHES, min_size=1, max_size=3).map("|".join), st.sampled_from(["", "$"])
).map("".join)
NAMES = st.lists(st.text("abce1_", min_size=1, max_size=4), min_size=1, max_size=4).map(".".join)


@given(KEYS, NAMES)
@example("^a|b$", "a.b")
@example("^a|b$", "b.a")
@example("a.b", "xa.b")
@example("a.b", "a1b")
@example("b?a*", "b")
def test_a_key_matches_what_the_expression_matches(key: str, name: str) -> None:
    assert not pattern_errors("rank_pattern", {key: 2})
    found = ModulePatterns({key: 2}).lookup(name, 1) == 2
    assert found == (re.match(rf"(.*\.)?({key})$", name) is not None)


@given(st.lists(KEYS, max_size=4, unique=True), NAMES)
def test_the_first_key_that_matches_decides(keys: list[str], name: str) -> None:
    patterns = ModulePatterns({key: number for number, key in enumerate(keys)})
    expected = next((number for number, key in enumerate(keys) if re.match(rf"(.*\.)?({key})$", name)), -1)
    assert patterns.lookup(name, -1) == expected


def test_a_rank_for_each_module_of_a_large_model_is_read() -> None:
    """EVA and AdaLoRA write every module's whole name."""
    names = [f"model.layers.{layer}.self_attn.{side}_proj" for layer in range(80) for side in "qkvo"]
    patterns = ModulePatterns({name: number for number, name in enumerate(names)})
    assert [patterns.lookup(name, -1) for name in names] == list(range(len(names)))


DEAR = {
    "optional": {".?" * 22 + "X": 8},
    "repeats": {".*" * 120 + "X": 8},
    "branches": {"(.|.|.|.|.|.)" * 15 + "X": 8},
    "many": {f"{number}.*" + "[a-z]?" * 20 + "X": 8 for number in range(50)},
}


@pytest.mark.parametrize("keys", DEAR.values(), ids=DEAR)
def test_the_dearest_patterns_take_bounded_time(keys: dict[str, int], tmp_path: Path) -> None:
    tensors: Tensors = {}
    for layer in range(240):
        tensors[tensor_name(layer, "self_attn.q_proj", "A")] = tensor(2, 1)
        tensors[tensor_name(layer, "self_attn.q_proj", "B")] = tensor(1, 2)
    folder = write_adapter(tmp_path, {**CONFIG, "rank_pattern": keys, "alpha_pattern": keys}, tensors)
    before_s = time.thread_time()
    try:
        assert {module.scaling for module in read_adapter(folder).modules} == {2.0}
    except AdapterRejected as refusal:
        assert "too many keys or repeats" in str(refusal)
    assert time.thread_time() - before_s < 1.0
