"""Whose fault it is: a step's ends its requests; any other ends the loop, and the process, which is started anew."""

from __future__ import annotations

import pytest
import torch

from tests.engine.scheduling.scheduler_model import expected_choice
from tests.engine.scripted_core import Answered, SlowCompiler, final, request, run_core, text


class BrokenOnce(SlowCompiler):
    """Fails when it is asked during the first step."""

    def ready(self) -> list[Answered]:
        if self._asked == 1:
            self._asked += 1
            raise ValueError("the compiler broke")
        return super().ready()


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("a shape"),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
    ids=str,
)
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("late", [(), (2,)], ids=["launch", "results"])
def test_a_step_that_fails_ends_its_requests_and_no_others(
    fault: Exception, late: tuple[int, ...], ahead: bool
) -> None:
    """ahead: the step before it is on its way, or the one after it."""
    events, _ = run_core(request(), request("next"), max_num_seqs=1, faults={2: fault}, late=late, ahead=ahead)
    error = final(events).error
    assert error is not None and error.code == "internal"
    assert text(events, "next") == expected_choice(request(), seed=5).shown


def test_a_fault_of_a_command_during_a_step_is_no_requests_fault() -> None:
    waiting = request("waiting", grammar={"kind": "regex", "source": "x"})
    with pytest.raises(ValueError, match="the compiler broke"):
        run_core(request(), waiting, compiler=BrokenOnce())


@pytest.mark.parametrize(
    "fault",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
    ],
    ids=str,
)
@pytest.mark.parametrize("late", [(), (2,)], ids=["launch", "results"])
def test_a_lost_device_ends_the_loop(fault: Exception, late: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError) as raised:
        run_core(request(), faults={2: fault}, late=late)
    assert raised.value is fault
