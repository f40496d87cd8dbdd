"""Products with matrices of 8-bit and 4-bit integers: near their reference, and the same bits on every path."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import NativeLibrary
from kernels.cpu.linear import NativeLinear, linear_reference
from kernels.cpu.matrix import Format, NativeMatrix, dequantized_weight
from tests.patience import PATIENCE_S

SHAPES = [(1, 1), (16, 32), (15, 31), (17, 33), (100, 64), (576, 576), (33, 1537), (1000, 96)]
ROWS = [*range(1, 14), 15, 16, 23, 31, 33, 63, 64, 65]
DTYPES = [torch.float32, torch.bfloat16]
KINDS: list[Format] = ["int8", "int4"]
ERRORS = {"int8": 0.02, "int4": 0.15}
"""The largest relative error of a product with random weights, by format."""

of_each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


@of_each_kind
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_a_matrix_stands_for_its_rounded_weights(
    library: NativeLibrary, num_outputs: int, num_inputs: int, kind: Format
) -> None:
    weight = torch.randn(num_outputs, num_inputs)
    matrix = NativeMatrix.quantized(library, weight, kind)
    stored = matrix.dequantized()
    assert torch.equal(stored, dequantized_weight(weight, kind))
    assert torch.equal(matrix.rows(torch.tensor([num_outputs - 1, 0])), stored[[num_outputs - 1, 0]])
    step = torch.nn.functional.pad(weight, (0, -num_inputs % 32)).view(num_outputs, -1, 32).abs().amax(-1) / 127
    bound = 5 * step if kind == "int8" else 127 * 2 / 10 * step
    assert ((stored - weight).abs() <= bound.repeat_interleave(32, 1)[:, :num_inputs]).all()


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(70, 96), (5, 45), (16, 33)])
def test_four_bits_lose_least_where_inputs_are_important(
    library: NativeLibrary, num_outputs: int, num_inputs: int
) -> None:
    weight = torch.randn(num_outputs, num_inputs)
    importance = torch.rand(num_inputs) ** 8
    weighed = NativeMatrix.quantized(library, weight, "int4", importance).dequantized()
    assert torch.equal(weighed, dequantized_weight(weight, "int4", importance))
    alike = NativeMatrix.quantized(library, weight, "int4").dequantized()
    lost, lost_alike = ((each - weight).square() * importance for each in (weighed, alike))
    assert lost.sum() < lost_alike.sum()
    for wrong in (torch.nan, torch.inf, -1.0):
        importance[-1] = wrong
        with pytest.raises(ValueError, match="importance"):
            NativeMatrix.quantized(library, weight, "int4", importance)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-6, 1e-3, 1.0, 1e4])
def test_four_bits_keep_groups_of_any_size_and_constants(library: NativeLibrary, scale: float) -> None:
    weight = torch.cat((torch.randn(9, 64), torch.full((4, 64), -0.75), torch.eye(3, 64))) * scale
    stored = NativeMatrix.quantized(library, weight, "int4").dequantized()
    assert torch.equal(stored, dequantized_weight(weight, "int4"))
    # A number in half has 11 bits, and no more than a multiple of 2^-24.
    assert torch.allclose(stored[9:13], weight[9:13], rtol=2**-11, atol=2**-24)


def test_four_bits_refuse_what_half_precision_does_not_hold(library: NativeLibrary) -> None:
    with pytest.raises(ValueError, match=r"\[4, 32\]"):
        NativeMatrix.quantized(library, torch.full((4, 32), 7e4), "int4")


@of_each_kind
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_every_path_equals_the_reference_and_the_plain_path(
    library: NativeLibrary, num_outputs: int, num_inputs: int, kind: Format
) -> None:
    weight, bias = torch.randn(num_outputs, num_inputs), torch.randn(num_outputs)
    linears = [NativeLinear.of(library, kind, weight, bias, path) for path in library.paths]
    for rows in ROWS:
        x = torch.randn(rows, num_inputs) * 10 ** torch.randn(rows, 1)
        plain, *others = [linear(x) for linear in linears]
        assert relative_error(plain, linear_reference(x, weight, bias, kind)) < 1e-5
        assert relative_error(plain, x @ weight.T + bias) < ERRORS[kind]
        assert all(torch.equal(plain, other) for other in others)


def test_the_library_knows_what_this_processor_has(library: NativeLibrary) -> None:
    assert library.paths[0] == "plain"
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            flags = set(file.read().split())
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    expected = {"avx2": "avx2", "avx_vnni": "avx_vnni", "avx512_vnni": "avx512_vnni"}
    assert set(library.paths[1:]) == {path for path, flag in expected.items() if flag in flags}


@of_each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_is_rounded_once(library: NativeLibrary, dtype: torch.dtype, kind: Format) -> None:
    weight, bias = torch.randn(70, 96), torch.randn(70)
    x, y = torch.randn(9, 96).to(dtype), torch.randn(9, 70).to(dtype)
    linear = NativeLinear.of(library, kind, weight, bias)
    exact = linear(x.float())
    assert torch.equal(linear(x), exact.to(dtype))
    assert torch.equal(linear.add(x, y.clone()), (exact + y.float()).to(dtype))


def test_half_precision_is_computed_in_single(library: NativeLibrary) -> None:
    linear, x = NativeLinear.of(library, "int8", torch.randn(20, 64)), torch.randn(3, 64).half()
    assert torch.equal(linear(x), linear(x.float()).half())


@of_each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 65, 513, 600])
def test_every_number_is_written_and_nothing_else(
    library: NativeLibrary, rows: int, dtype: torch.dtype, kind: Format
) -> None:
    """x and y are columns of wider tensors: what surrounds them is poison that must neither be read nor overwritten."""
    around_x = torch.full((rows + 2, 50), torch.nan, dtype=dtype)
    around_y = torch.full((rows + 2, 90), torch.nan, dtype=dtype)
    x, y = around_x[1:-1, 3:43], around_y[1:-1, 5:82]
    x.copy_(torch.randn(rows, 40))
    y.zero_()
    linear = NativeLinear.of(library, kind, torch.randn(77, 40))
    with threads(3):
        out = linear.add(x, y)
    assert out.data_ptr() == y.data_ptr()
    assert torch.equal(out, linear(x.contiguous()))
    assert around_y.isnan().sum() == around_y.numel() - y.numel()


@of_each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_alone_and_among_neighbors(
    library: NativeLibrary, dtype: torch.dtype, kind: Format
) -> None:
    weight = torch.randn(133, 224)
    for path in library.paths:
        linear, x = NativeLinear.of(library, kind, weight, path=path), torch.randn(65, 224).to(dtype)
        alone = torch.cat([linear(row[None]) for row in x])
        for rows in range(1, 66):
            assert torch.equal(linear(x[:rows]), alone[:rows])
            assert torch.equal(linear(x[65 - rows :]), alone[65 - rows :])


@of_each_kind
def test_a_row_that_is_not_finite_changes_no_other_row(library: NativeLibrary, kind: Format) -> None:
    linear, x = NativeLinear.of(library, kind, torch.randn(40, 96)), torch.randn(9, 96)
    clean = linear(x)
    for poison in (torch.nan, torch.inf, -torch.inf):
        x[4, 50] = poison
        out = linear(x)
        assert out[4].isnan().all()
        assert torch.equal(out[:4], clean[:4])
        assert torch.equal(out[5:], clean[5:])


@of_each_kind
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-31, 1e-20, 1e20])
def test_numbers_of_any_size_are_scaled(library: NativeLibrary, scale: float, kind: Format) -> None:
    weight, x = torch.randn(20, 64), torch.randn(4, 64) * scale
    expected = linear_reference(x, weight, kind=kind)
    assert torch.allclose(NativeLinear.of(library, kind, weight)(x), expected, rtol=1e-4, atol=1e-30)


@of_each_kind
def test_a_matrix_that_is_no_number_is_refused(library: NativeLibrary, kind: Format) -> None:
    for poison in (torch.nan, torch.inf):
        weight = torch.zeros(20, 64)
        weight[7, 40] = poison
        with pytest.raises(ValueError, match=r"\[20, 64\]"):
            NativeMatrix.quantized(library, weight, kind)


def test_a_product_without_rows_has_no_rows(library: NativeLibrary) -> None:
    assert NativeLinear.of(library, "int8", torch.randn(20, 64))(torch.empty(0, 64)).shape == (0, 20)


def test_the_number_of_threads_changes_no_bit(library: NativeLibrary) -> None:
    weight = torch.randn(1234, 320)
    linear = NativeLinear.of(library, "int8", weight)
    for rows in (1, 8, 65, 600):
        x = torch.randn(rows, 320)
        with threads(1):
            alone = linear(x)
        for number in (2, 3, 8, 2):
            with threads(number):
                assert all(torch.equal(linear(x), alone) for _ in range(20))


def test_threads_that_lose_their_processor_change_no_bit(library: NativeLibrary) -> None:
    """Far more threads than processors run beside busy processes, so that helpers lose units all the time.

    Matrices are freed meanwhile, and the place of their results is overwritten.
    """
    spinning = [multiprocessing.get_context("fork").Process(target=_spin, daemon=True) for _ in range(2)]
    for process in spinning:
        process.start()
    try:
        with threads(16):
            x, weight = torch.randn(4, 256), torch.randn(2000, 256)
            expected = NativeLinear.of(library, "int8", weight)(x)
            for _ in range(150):
                linear = NativeLinear.of(library, "int8", weight)
                first, second = linear(x), linear(x)
                assert torch.equal(first, expected)
                first.fill_(torch.nan)
                del linear
                gc.collect(0)
                assert torch.equal(second, expected)
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def test_threads_of_python_may_call_at_once(library: NativeLibrary) -> None:
    weight = torch.randn(700, 256)
    linear = NativeLinear.of(library, "int8", weight)
    inputs = [torch.randn(rows, 256) for rows in (1, 7, 40, 70)]
    expected = [linear(x) for x in inputs]
    wrong: list[int] = []

    def call(number: int) -> None:
        torch.set_num_threads(3)
        wrong.extend(number for _ in range(100) if not torch.equal(linear(inputs[number]), expected[number]))

    with threads(3):
        callers = [threading.Thread(target=call, args=(number,)) for number in range(len(inputs))]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


def test_a_forked_process_computes_without_helpers(library: NativeLibrary) -> None:
    weight, x = torch.randn(900, 128), torch.randn(2, 128)
    linear = NativeLinear.of(library, "int8", weight)
    with threads(4):
        expected = linear(x)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=lambda: answers.put(linear(x).tolist()))
        child.start()
        child.join(PATIENCE_S)
        assert child.exitcode == 0
        assert torch.equal(torch.tensor(answers.get()), expected)
