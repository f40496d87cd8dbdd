"""A background response of which nothing was sent is tried again, however often it fails."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from gateway.content.background_responses import Claim
from gateway.db.content.background_responses import Turn
from gateway.domain.errors import NoReplicaYet
from gateway.domain.tenancy.principal import Principal
from gateway.openai.responses.background.request import BackgroundRequest
from gateway.openai.responses.background.running import Running, RunTools

WIRE = {"model": "tiny", "input": "hello", "background": True, "store": True}
RESPONSE: dict[str, Any] = (
    WIRE
    | {
        "id": "resp_1",
        "created_at": 1,
        "status": "queued",
        "output": [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": None},
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "service_tier": "default",
        "metadata": {},
    }
    | dict.fromkeys(
        (
            "instructions",
            "previous_response_id",
            "conversation",
            "max_tool_calls",
            "max_output_tokens",
            "safety_identifier",
            "prompt_cache_key",
        )
    )
)


class Background:
    """A stand-in for background responses that records the delay of each one put back."""

    def __init__(self) -> None:
        self.put_back_s: list[float] = []

    async def put_back(self, turn: Turn, *, again_s: float) -> None:
        self.put_back_s.append(again_s)


async def test_a_response_whose_pool_has_no_replica_yet_is_tried_again_however_often() -> None:
    async def refused(project_id: str, api_key_id: str) -> Principal:
        raise NoReplicaYet("One is starting.", retry_after_s=40.0)

    background = Background()
    tools = RunTools(cast("Any", None), cast("Any", background), cast("Any", None), refused)
    for fence in range(1, 6):
        claim = Claim(
            turn=Turn("proj_1", "resp_1", "run_1", fence),
            api_key_id="key_1",
            request=msgspec.msgpack.encode(BackgroundRequest("req_1", msgspec.json.encode(WIRE), [])),
            response=msgspec.json.encode(RESPONSE),
            num_events=0,
            is_cancelled=False,
            age_s=60.0 * fence,
        )
        assert await Running(claim, tools).run() == "put_back"
    assert background.put_back_s == [40.0] * 5
