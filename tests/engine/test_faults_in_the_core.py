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
def test_a_step_that_fails_ends_its_requests_and_no_others(fault: Exception) -> None:
    events, _ = run_core(request(), later={2: [request("next")]}, faults={2: fault}, overlapping=True)
    error = final(events).error
    assert error is not None and error.code == "internal"
    assert text(events, "next") == expected_choice(request(), seed=5).shown


def test_a_fault_of_a_command_during_a_step_is_no_requests_fault() -> None:
    waiting = request("waiting", grammar={"kind": "regex", "source": "x"})
    with pytest.raises(ValueError, match="the compiler broke"):
        run_core(request(), waiting, compiler=BrokenOnce(), overlapping=True)


@pytest.mark.parametrize(
    "fault",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
        RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
    ],
    ids=str,
)
def test_a_lost_device_ends_the_loop(fault: Exception) -> None:
    with pytest.raises(RuntimeError) as raised:
        run_core(request(), faults={2: fault})
    assert raised.value is fault
