"""Cascades: the small model's answer where it is good enough, else the larger one's.

Each answer that was made is billed, and the request counts as one request.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.gateway.live import LiveGateway
from tests.gateway.routing.policies.routes import (
    BROKEN,
    LARGE,
    SLOW,
    SMALL,
    Routes,
    another_tenant,
    body_of,
    complete,
    limit_one_at_a_time,
    limit_to,
    target,
)
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.waiting import wait_until

NEVER = {"regex": "^never said$"}


def cascade(first: str, accept: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"cascade": {"nodes": [target(first), target(LARGE)], "accept": accept} | fields}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_accepted_is_the_reply_and_all_that_is_paid(
    made: Routes, client: httpx.Client, stream: bool
) -> None:
    own = body_of(complete(client, SMALL, stream=stream))
    route = made.make(f"accepted-{stream}".lower(), cascade(SMALL, {"regex": f"^{re.escape(own[0])}$"}))
    reply = complete(client, route, stream=stream)
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, SMALL), reply.text
    assert reply.headers["x-lorikeet-attempts"] == "1"
    assert body_of(reply) == own
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: made.all_rows(request_id), "the request is in the ledger")
    assert [(row["request_id"], row["model"], row["finish_reason"]) for row in made.all_rows(request_id)] == [
        (request_id, SMALL, "length")
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accept", [NEVER, {"schema": {"type": "object"}}, {"min_logprob": 0}])
def test_an_answer_that_is_not_accepted_is_paid_and_the_larger_models_is_the_reply(
    made: Routes, client: httpx.Client, accept: dict[str, Any], stream: bool
) -> None:
    route = made.make(f"not-{next(iter(accept)).replace('_', '-')}-{stream}".lower(), cascade(SMALL, accept))
    reply = complete(client, route, stream=stream)
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, LARGE), reply.text
    assert reply.headers["x-lorikeet-attempts"] == "2"
    assert body_of(reply) == body_of(complete(client, LARGE, stream=stream))
    assert "logprobs" not in reply.text or '"logprobs":null' in reply.text
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: len(made.all_rows(request_id)) == 2, "both answers are in the ledger")
    rows = made.all_rows(request_id)
    assert [(row["request_id"], row["model"], row["finish_reason"]) for row in rows] == [
        (request_id, SMALL, "length"),
        (f"{request_id}.1", LARGE, "length"),
    ]
    assert all(row["prompt_tokens"] and row["completion_tokens"] == 4 for row in rows)
    assert made.num_requests(request_id) == 1


def test_a_mean_log_probability_decides(made: Routes, client: httpx.Client) -> None:
    reply = complete(client, SMALL, logprobs=0)
    values = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
    mean = sum(values) / len(values)
    assert mean < 0
    for name, least, wanted in (("likely", mean - 0.001, SMALL), ("unlikely", min(0.0, mean + 0.001), LARGE)):
        route = made.make(name, cascade(SMALL, {"min_logprob": least}))
        reply = complete(client, route)
        assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, wanted), reply.text
        assert reply.json()["choices"][0]["logprobs"] is None


def test_a_model_that_fails_costs_nothing_and_the_next_one_answers(made: Routes, client: httpx.Client) -> None:
    reply = complete(client, made.make("cascade-broken", cascade(BROKEN, NEVER)))
    assert (reply.status_code, reply.headers.get("x-lorikeet-target")) == (200, LARGE), reply.text
    request_id = reply.headers["x-request-id"]
    wait_until(lambda: len(made.all_rows(request_id)) == 2, "both attempts are in the ledger")
    assert {(row["request_id"], row["model"], row["finish_reason"]) for row in made.all_rows(request_id)} == {
        (request_id, BROKEN, "superseded"),
        (request_id, LARGE, "length"),
    }
    assert made.num_requests(request_id) == 1


def test_a_client_that_leaves_pays_for_the_answer_that_was_begun_and_no_other_model_is_asked(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client, recording: dict[str, RecordingEngine]
) -> None:
    with another_tenant(dsn_of_all, gateway, "impatient") as (made, own):
        route = made.make("left", cascade(SLOW, NEVER))
        num_before = len(recording[SLOW].requests)
        with closing(http.client.HTTPConnection(own.base_url.netloc.decode())) as leaving:
            body = json.dumps({"model": route, "prompt": "abc", "max_tokens": 1000})
            leaving.request("POST", "/v1/completions", body, {"authorization": f"Bearer {made.tenant.key}"})
            wait_until(lambda: len(recording[SLOW].requests) > num_before, "an answer is begun")
        wait_until(made.ends_of_tenant, "the answer that was begun is in the ledger")
        assert complete(own, SMALL).status_code == 200
        wait_until(lambda: len(made.ends_of_tenant()) > 1, "so is what came later")
        assert made.ends_of_tenant() == [(SLOW, "abort"), (SMALL, "length")]


def test_several_prompts_go_to_the_last_model(made: Routes, client: httpx.Client) -> None:
    reply = complete(client, made.make("cascade-several", cascade(SMALL, NEVER)), prompt=["abc", "de"])
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, LARGE), reply.text
    assert reply.headers["x-lorikeet-attempts"] == "1"


def test_a_request_with_two_answers_is_one_request_for_limits(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    with another_tenant(dsn_of_all, gateway, "few-requests") as (made, own):
        route = made.make("careful", cascade(SMALL, NEVER))
        asyncio.run(limit_to(dsn_of_all, made.tenant, ("requests", "day", 6)))
        wait_until(lambda: "x-ratelimit-limit-requests" in complete(own, SMALL).headers, "the limit is known")
        num_answered = 0
        while (reply := complete(own, route)).status_code == 200:
            assert reply.headers["x-lorikeet-attempts"] == "2"
            num_answered += 1
        assert (reply.status_code, num_answered > 1) == (429, True), reply.text
        wait_until(lambda: made.num_requests_of_tenant() == 6, "each request that the limit allows is in the ledger")
        wait_until(lambda: made.num_rows_of_tenant() == 6 + num_answered, "each that was begun had both answers")


def test_every_choice_has_to_be_accepted(made: Routes, client: httpx.Client) -> None:
    texts = [choice["text"] for choice in complete(client, SMALL, n=2, seed=1).json()["choices"]]
    both = "|".join(f"^{re.escape(text)}$" for text in texts)
    for name, pattern, wanted in (("both", both, SMALL), ("none", "^never said$", LARGE)):
        reply = complete(client, made.make(f"choices-{name}", cascade(SMALL, {"regex": pattern})), n=2, seed=1)
        assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, wanted), reply.text


def test_what_the_small_model_left_of_its_reservation_is_given_back(
    dsn_of_all: str, gateway: LiveGateway, client: httpx.Client
) -> None:
    """A request with two answers fits limits of one request at a time and of tokens for little more than one answer."""
    with another_tenant(dsn_of_all, gateway, "limited-cascade") as (made, own):
        asyncio.run(limit_one_at_a_time(dsn_of_all, made.tenant))
        route = made.make("tried", cascade(SMALL, NEVER))
        for _ in range(2):
            reply = complete(own, route, max_tokens=200)
            assert (reply.status_code, reply.headers.get("x-lorikeet-attempts")) == (200, "2"), reply.text
