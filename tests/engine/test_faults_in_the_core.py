"""A fault of a step ends the step's requests; any other fault ends the loop and the process, which is started again."""

from __future__ import annotations

import pytest
import torch

from engine.protocol import Abort, StepOutputs
from tests.engine.scheduling.scheduler_model import expected_choice
from tests.engine.scripted_core import CompilerAnswer, SlowCompiler, final, request, run_core, text


class BrokenOnce(SlowCompiler):
    """A compiler that fails when it is asked during the first step."""

    def ready(self) -> list[CompilerAnswer]:
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
@pytest.mark.parametrize("where", ["launch", "half", "results"])
def test_a_step_that_fails_ends_its_requests_and_no_others(fault: Exception, where: str, ahead: bool) -> None:
    """The step fails alone, or while the step before it or after it is on its way (`ahead`).

    The prompt takes three steps; no request finds cached entries that the second step did not compute.
    """
    asked = request(), request("next")
    events, _ = run_core(*asked, max_num_seqs=1, max_batched_tokens=8, faults={(where, 2): fault}, ahead=ahead)
    error = final(events).error
    assert error is not None and error.code == "internal"
    assert text(events, "next") == expected_choice(request(), seed=5).shown
    assert final(events, "next").usage.cached_tokens == 8


@pytest.mark.parametrize("where", ["launch", "results"])
def test_a_request_that_ended_in_the_step_before_one_that_fails_has_its_answer(where: str) -> None:
    """The request's third token, of the fourth step, stops it; the failing fifth step is launched before that is
    known."""
    stop = expected_choice(request(), seed=5).shown[2]
    events, plans = run_core(request(stop_token_ids=[stop]), faults={(where, 5): ValueError("a shape")})
    assert len(plans) == 5  # two for the prompt
    assert final(events).finish_reason == "stop" and final(events).usage.completion_tokens == 3


def test_a_request_named_as_one_that_left_in_time_does_not_fail_with_its_step() -> None:
    events, _ = run_core(
        request(max_tokens=30), later={3: [Abort("r"), request(seed=9)]}, faults={("results", 3): ValueError("a shape")}
    )
    finals = [each for event in events if isinstance(event, StepOutputs) for each in event.finals]
    assert [each.finish_reason for each in finals] == ["abort", "length"]
    assert text(events)[-6:] == expected_choice(request(), seed=9).shown


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
@pytest.mark.parametrize("where", ["launch", "half", "results"])
def test_a_lost_device_ends_the_loop(fault: Exception, where: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        run_core(request(), faults={(where, 2): fault})
    assert raised.value is fault
