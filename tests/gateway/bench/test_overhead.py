"""The benchmark of the gateway's own cost runs from nothing, and loses no request."""

from __future__ import annotations

import itertools
import json

import pytest

from gateway.bench.overhead import NUM_TURNS, PROMPTS, bodies_of, main
from tests.demo import demo_model_dir


def test_every_row_is_there_and_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rates", "50", "--seconds", "0.5", "--gateways", "1", "--streams", "4", "--prompts", "text", "--json"]
    assert main(["--model-dir", str(demo_model_dir()), *flags]) == 0
    at_rate, at_most = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (at_rate["offered_per_s"], at_most["offered_per_s"]) == (50, None)
    for row in (at_rate, at_most):
        assert (row["errors"], row["statuses"]) == (0, {"200": row["requests"]})
        assert 0 < row["ms_p50"] <= row["ms_p95"] <= row["ms_p99"]
        assert row["cpu_ms_per_request"] > 0


@pytest.mark.parametrize("prompts", PROMPTS)
def test_no_prompt_comes_twice(prompts: str) -> None:
    bodies = list(itertools.islice(bodies_of(1, prompts, 3), 6 * NUM_TURNS))
    assert len(set(bodies)) == len(bodies)


def test_a_conversation_grows_by_a_turn_with_each_request_of_its_tenant() -> None:
    bodies = itertools.islice(bodies_of(1, "conversation", 3), 6 * NUM_TURNS)
    chats = [json.loads(body)["messages"] for body in bodies]
    assert {chat[0]["content"] for chat in chats} == {chats[0][0]["content"]}
    for number, chat in enumerate(chats[3:], start=3):
        before = chats[number - 3]
        if len(before) < 2 * NUM_TURNS:
            assert (chat[:-2], len(chat)) == (before, len(before) + 2)
        else:
            assert (chat[1] in before, len(chat)) == (False, 2)
