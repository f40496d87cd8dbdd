"""Errors of rounding to FP8 are made good by later columns, and the matrices that cost most stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import load_model_config
from engine.cpu.quality import differences
from engine.cpu.text import TextStates, states_of
from engine.models.weights import Product, StackedMatrices, plain_embedding, plain_linear
from engine.prepare.calibration import hidden_of, round_by_text
from engine.prepare.compensation import LARGEST, Float8Rows, NoDecomposition, compensated_rows, rounded_rows
from engine.prepare.sensitivity import GROUPS_OF_LAYER, Group, groups_of, most_sensitive
from kernels.linear import Linear
from tests.engine.models.tiny import save_tiny

PIECES = [[(7 * i + 11 * piece) % 90 + 4 for i in range(length)] for piece, length in enumerate((45, 30, 12))]


def correlated_inputs(num_inputs: int) -> torch.Tensor:
    """Return 1,000 inputs, four fifths of whose variance a few directions share."""
    directions = torch.randn(12, num_inputs, generator=torch.Generator().manual_seed(3))
    shared = torch.randn(1000, 12) @ directions / 12**0.5
    return (2 * shared + torch.randn(1000, num_inputs)) * torch.logspace(-0.5, 0.5, num_inputs)


def lost(rows: Float8Rows, weight: torch.Tensor, met: torch.Tensor, plain: torch.Tensor | None = None) -> float:
    """Return the error of products with a rounded weight, relative to the products with the weight itself.

    rows: the rounded weight. met: the inputs of the rounded weight. plain: the inputs of the weight; None: the same.
    """
    expected = (met if plain is None else plain) @ weight.T
    return float((met @ rows.float().T - expected).norm() / expected.norm())


@pytest.mark.parametrize("num_inputs", [1, 63, 64, 200])
def test_products_with_correlated_inputs_lose_less_than_by_the_nearest_numbers(num_inputs: int) -> None:
    torch.manual_seed(num_inputs)
    weight, x = torch.randn(96, num_inputs), correlated_inputs(num_inputs)
    products = x.T @ x
    nearest, compensated = rounded_rows(weight, products.diagonal()), compensated_rows(weight, products)
    assert compensated.numbers.float().isfinite().all()
    if num_inputs == 1:  # no later column
        assert torch.equal(compensated.float(), nearest.float())
        return
    assert lost(compensated, weight, x) < 0.8 * lost(nearest, weight, x)
    others = correlated_inputs(num_inputs)  # alike, but other ones
    assert lost(compensated, weight, others) < 0.85 * lost(nearest, weight, others)


def test_inputs_that_have_nothing_in_common_leave_the_nearest_numbers() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 100)
    nearest = rounded_rows(weight, None)
    assert torch.equal(compensated_rows(weight, torch.eye(100)).float(), nearest.float())


def test_errors_of_inputs_are_made_good_as_well() -> None:
    torch.manual_seed(0)
    weight, plain = torch.randn(96, 64), correlated_inputs(64)
    met = plain + 0.3 * plain[:, torch.randperm(64)]
    products, missing = met.T @ met, (plain - met).T @ met
    without, having = compensated_rows(weight, products), compensated_rows(weight, products, missing)
    assert lost(having, weight, met, plain) < 0.5 * lost(without, weight, met, plain)


def test_inputs_that_are_never_there_and_rows_of_zeros_are_rounded_all_the_same() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(16, 48), torch.randn(100, 48)
    weight[3], x[:, 5:20] = 0.0, 0.0
    for products in (x.T @ x, torch.zeros(48, 48)):
        found = compensated_rows(weight, products, torch.zeros(48, 48))
        assert found.numbers.float().abs().max() <= LARGEST and found.float().isfinite().all()
        assert (found.float()[3] == 0).all()
        assert (found.float() - weight)[:, 5:20].norm() < 0.04 * weight[:, 5:20].norm()


@pytest.mark.parametrize("place", ["products", "missing"])
def test_inputs_that_are_not_finite_round_nothing(place: str) -> None:
    given = {"products": torch.eye(48), "missing": torch.zeros(48, 48)}
    given[place][3, 3] = torch.inf
    with pytest.raises(NoDecomposition):
        compensated_rows(torch.ones(16, 48), given["products"], given["missing"])


@pytest.mark.parametrize("family", ["llama", "gemma3", "granite"])
def test_pieces_of_text_are_computed_as_if_each_were_alone(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path)
    config = load_model_config(tmp_path)
    with torch.inference_mode():
        _, found = hidden_of(tmp_path, config, PIECES, plain_linear, "computed:")
        for piece, hidden in zip(PIECES, torch.split(found, [len(each) for each in PIECES]), strict=True):
            alone = states_of(tmp_path, config, piece, plain_linear, plain_embedding, torch.float32)
            torch.testing.assert_close(hidden, alone.hidden, rtol=1e-4, atol=1e-4)


def test_matrices_meet_the_inputs_that_rounded_ones_before_them_give(tmp_path: Path) -> None:
    """Rounding goes from layer to layer: each is rounded by what the folder itself will compute."""
    save_tiny("llama", tmp_path)
    config = load_model_config(tmp_path)
    rounded: dict[str, Float8Rows] = {}
    kept = "model.layers.0.mlp.down_proj.weight"
    round_by_text(tmp_path, config, PIECES, {kept}, rounded.__setitem__)
    assert len(rounded) == 7 * config.num_layers - 1 and kept not in rounded

    def states(others: dict[str, Float8Rows]) -> TextStates:
        def linear(matrices: StackedMatrices, bias: torch.Tensor | None) -> Product:
            parts = torch.split(matrices.tensor, [height for height, _ in matrices.shapes])
            named = zip(matrices.names, parts, strict=True)
            return Linear(torch.cat([others[name].float() if name in others else part for name, part in named]), bias)

        decoder, hidden = hidden_of(tmp_path, config, PIECES, linear, "computed:")
        return TextStates(decoder, hidden)

    nearest: dict[str, Float8Rows] = {}

    def note(matrices: StackedMatrices, bias: torch.Tensor | None) -> Product:
        parts = torch.split(matrices.tensor, [height for height, _ in matrices.shapes])
        for name, part in zip(matrices.names, parts, strict=True):
            if name in rounded:
                nearest[name] = rounded_rows(part, None)
        return plain_linear(matrices, bias)

    with torch.inference_mode():
        hidden_of(tmp_path, config, PIECES, note, "computed:")
        plain, compensated, by_themselves = states({}), states(rounded), states(nearest)
    error = (compensated.hidden - plain.hidden).norm()
    assert 0 < error < 0.8 * (by_themselves.hidden - plain.hidden).norm()


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3-partial"])
def test_each_group_is_measured_as_if_it_alone_were_rounded(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path)
    config = load_model_config(tmp_path)
    groups = groups_of(tmp_path, config, PIECES)
    assert len(groups) == len(GROUPS_OF_LAYER) * config.num_layers
    assert len({name for group in groups for name in group.names}) == 7 * config.num_layers
    chosen = groups[3]

    def linear(matrices: StackedMatrices, bias: torch.Tensor | None) -> Product:
        if matrices.names != chosen.names:
            return plain_linear(matrices, bias)
        return Linear(rounded_rows(matrices.tensor, None).float(), bias)

    with torch.inference_mode():
        plain, rounded = (TextStates(*hidden_of(tmp_path, config, PIECES, each, "")) for each in (plain_linear, linear))
        expected, _ = differences(plain, rounded, torch.tensor([token for piece in PIECES for token in piece][1:]))
    assert expected > 0
    assert chosen.divergence_nats == pytest.approx(expected, rel=0.02)


def test_what_costs_most_for_its_size_stays_up_to_a_share() -> None:
    costs = ((100, 1.0), (50, 0.9), (10, 0.01), (40, 0.0), (800, 0.5))
    groups = [Group((str(place),), *each) for place, each in enumerate(costs)]

    def kept(share: float) -> str:
        return " ".join(group.names[0] for group in most_sensitive(groups, share))

    assert [kept(share) for share in (0.0, 0.05, 0.06, 0.15, 0.16)] == ["", "1", "1 2", "1 0", "1 0 2"]
    assert kept(0.999) == "1 0 2 4", "what costs nothing is rounded"
