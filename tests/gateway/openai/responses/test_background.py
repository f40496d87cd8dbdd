"""One run of a background response: when it is tried again, and what it shows once it was taken over."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from gateway.backends.generation import Piece
from gateway.content.background_responses import ClaimedResponse, Events
from gateway.db.content.background_responses import RunTurn
from gateway.db.ledger.usage import BilledTokens
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
    """A fake of the service of background responses, which records delays of those put back, and their ends.

    logged: the events that an earlier gateway has stored for the response. bill: the response's tokens in the ledger;
    None: the database does not answer.
    """

    def __init__(self, logged: Events | None = None, bill: BilledTokens | None = None) -> None:
        self.put_back_s: list[float] = []
        self.ended: list[dict[str, Any]] = []
        self._logged = logged
        self._bill = bill

    async def put_back(self, turn: RunTurn, *, again_s: float) -> None:
        self.put_back_s.append(again_s)

    async def events(self, project_id: str, response_id: str, number: int) -> list[tuple[int, Events]]:
        return [(0, self._logged)] if self._logged is not None else []

    async def billed(self, project_id: str, row_ids: list[str]) -> BilledTokens:
        if self._bill is None:
            raise OSError
        assert row_ids[:2] == ["req_2", "req_2.1"]
        return self._bill

    async def end(
        self, turn: RunTurn, number: int, events: Events, status: str, response: bytes, *rest: object
    ) -> bool:
        self.ended.append(msgspec.json.decode(response))
        return True


async def test_a_response_whose_pool_has_no_replica_yet_is_tried_again_however_often() -> None:
    async def refused(project_id: str, api_key_id: str) -> Principal:
        raise NoReplicaYet("One is starting.", retry_after_s=40.0)

    background = Background()
    tools = RunTools(cast("Any", None), cast("Any", background), cast("Any", None), refused)
    for fence in range(1, 6):
        assert await Running(_claim(fence=fence), tools).run() == "put_back"
    assert background.put_back_s == [40.0] * 5


@pytest.mark.parametrize("bill", [BilledTokens(38, 16, 4), BilledTokens(0, 0, 0), None], ids=str)
async def test_a_response_that_was_taken_over_shows_what_is_billed(bill: BilledTokens | None) -> None:
    """Without an answer of the ledger, the response shows the prompt's tokens and the last count that was logged."""

    async def never(project_id: str, api_key_id: str) -> Principal:
        raise AssertionError("the response is not run again")

    claim = _claim(fence=2)
    begun = Running(claim, RunTools(cast("Any", None), cast("Any", Background()), cast("Any", None), never))
    events = begun._events.encode_each([Piece(0, "ahoy", num_tokens=3)])
    counts = msgspec.msgpack.encode({"output": 3, "reasoning": 0, "input": 38, "request_id": "req_2"})
    background = Background(Events(events, counts), bill)
    claim = msgspec.structs.replace(claim, num_events=len(events))
    tools = RunTools(cast("Any", None), cast("Any", background), cast("Any", None), never)
    assert await Running(claim, tools).run() == "failed"
    (response,) = background.ended
    usage = response["usage"]
    shown = (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])
    assert shown == ((38, 0, 3) if bill is None else (bill.prompt, bill.cached, bill.completion))
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert response["output"][0]["content"][0]["text"] == "ahoy"


def _claim(*, fence: int) -> ClaimedResponse:
    return ClaimedResponse(
        turn=RunTurn("proj_1", "resp_1", "run_1", fence),
        api_key_id="key_1",
        request=msgspec.msgpack.encode(BackgroundRequest("req_1", msgspec.json.encode(WIRE), [])),
        response=msgspec.json.encode(RESPONSE),
        num_events=0,
        is_cancelled=False,
        age_s=60.0 * fence,
    )
