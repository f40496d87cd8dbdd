"""Documents are ranked by the scores of a model made for it, billed one row a document; other models refuse."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx
import openai
import pytest

from gateway.domain.batches.endpoints import ENDPOINTS
from tests.demo import REPOSITORY
from tests.gateway.batches.jobs import Jobs, file_of
from tests.gateway.live import BASE
from tests.gateway.openai.rerank.ranker import QUERY, Body, Ranker, serving
from tests.gateway.openai.test_streams import usage_rows
from tests.installation.waiting import until


@pytest.fixture(scope="module")
def ranker(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranker]:
    with serving(module_dsn, tmp_path_factory.mktemp("ranker")) as ranker:
        yield ranker


async def test_documents_come_by_their_scores_and_are_billed_one_by_one(ranker: Ranker) -> None:
    documents = ["ax", {"text": "bzzz"}, "cyy", "dw"]
    reply = ranker.ask(query=QUERY, documents=documents, return_documents=True)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert [each["index"] for each in body["results"]] == [1, 2, 0, 3]
    scores = [1 / (1 + math.exp(-score)) for score in (2, 1, 0, 0)]
    assert [each["relevance_score"] for each in body["results"]] == pytest.approx(scores)
    assert [each["document"]["text"] for each in body["results"]] == ["bzzz", "cyy", "ax", "dw"]
    asked = ranker.asked(reply)
    num_tokens = sum(len(each.prompt_token_ids) for each in asked)
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert body["meta"]["tokens"]["input_tokens"] == num_tokens
    assert body["id"] == reply.headers["x-request-id"] and body["model"] == BASE
    expected = ranker.tokenizer.encode(QUERY, "cyy")
    assert asked[2].prompt_token_ids == expected.ids
    assert asked[2].num_first_tokens == expected.type_ids.index(1)
    assert {(each.pooling, each.sampling.max_tokens) for each in asked} == {("score", 0)}
    rows = await usage_rows(ranker.dsn, ranker.tenant.project_id, "stop", 4)
    mine = [row for row in rows if row["request_id"].startswith(body["id"])]
    assert sorted(row["prompt_tokens"] for row in mine) == sorted(len(each.prompt_token_ids) for each in asked)
    assert {row["endpoint"] for row in mine} == {"/v1/rerank"}


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_reranking_is_served_at_the_paths_of_other_clients_too(ranker: Ranker, path: str) -> None:
    reply = ranker.ask(path, query=QUERY, documents=["a", "bb"], top_n=1)
    assert reply.status_code == 200, reply.text
    assert [each["index"] for each in reply.json()["results"]] == [1]


async def test_a_batch_ranks_documents_and_names_what_is_wrong(ranker: Ranker) -> None:
    bodies: list[Body] = [{"documents": ["a", "bb"]}, {"documents": ["c", "dd", "eee"], "top_n": 1}, {"documents": []}]
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/rerank", "body": {"model": BASE, "query": QUERY} | body}
        for n, body in enumerate(bodies)
    ]
    api = openai.AsyncOpenAI(base_url=f"{ranker.url}/v1", api_key=ranker.tenant.key, max_retries=0)
    async with api:
        jobs = Jobs(api)
        ended = await jobs.run(file_of(lines), "/v1/rerank")
        done, failed = [await jobs.lines(id) for id in (ended.output_file_id, ended.error_file_id)]
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", 2, 1)
    replies = [line["response"]["body"] for line in done]
    assert [[each["index"] for each in reply["results"]] for reply in replies] == [[1, 0], [2]]
    assert ended.usage.input_tokens == sum(reply["usage"]["prompt_tokens"] for reply in replies) > 0
    assert [line["response"]["body"]["error"]["param"] for line in failed] == ["documents"]
    conn = await asyncpg.connect(ranker.dsn)
    try:

        async def is_billed() -> bool:
            query = "SELECT count(*), sum(prompt_tokens) FROM usage_attempts WHERE service_tier = 'batch'"
            return bool(tuple(await conn.fetchrow(query)) == (5, ended.usage.input_tokens))

        await until(is_billed, "the documents of two lines are not billed")
    finally:
        await conn.close()


def test_the_dashboard_offers_batches_of_every_endpoint() -> None:
    form = (REPOSITORY / "admin_ui" / "pages" / "batches" / "create.js").read_text()
    offered = re.search(r"const ENDPOINTS = (\[[^]]*\]);", form)
    assert offered and tuple(json.loads(offered[1])) == ENDPOINTS


def test_the_first_results_without_documents_and_scores_as_they_are(ranker: Ranker) -> None:
    body = ranker.ask(query=QUERY, documents=["a", "bb", "ccc"], top_n=2, raw_scores=True).json()
    assert body["results"] == [{"index": 2, "relevance_score": 2.0}, {"index": 1, "relevance_score": 1.0}]
    assert len(ranker.ask(query=QUERY, documents=["a", "bb"], top_n=9).json()["results"]) == 2


@pytest.mark.parametrize("most", [None, 3])
def test_long_documents_are_cut_at_their_ends(ranker: Ranker, most: int | None) -> None:
    document = "xy" * 2000
    fields = {} if most is None else {"max_tokens_per_doc": most}
    reply = ranker.ask(query=QUERY, documents=[document, "q"], **fields)
    assert reply.status_code == 200, reply.text
    long, short = ranker.asked(reply)
    whole = len(ranker.tokenizer.encode("xyx" if most else document, add_special_tokens=False))
    room = len(short.prompt_token_ids) - 1 + whole
    assert len(long.prompt_token_ids) == (room if most else 512)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [""]}, "documents[0]"),
        ({"documents": [{"text": ""}]}, "documents[0]"),
        ({"documents": [{"title": "a"}]}, "documents[0].title"),
        ({"documents": [5]}, "documents[0]"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": "xq" * 1000}, "query"),
        ({"query": None}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": "2"}, "top_n"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"priority": 3}, "priority"),
        ({"model": ""}, "model"),
    ],
)
def test_a_wrong_field_is_refused_by_name(ranker: Ranker, fields: Body, param: str) -> None:
    reply = ranker.ask(**({"query": QUERY, "documents": ["a"]} | fields))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_refusals_are_listed_wherever_a_client_asks(ranker: Ranker, path: str) -> None:
    assert ranker.ask(path, query=QUERY, documents=[]).status_code == 400
    conn = await asyncpg.connect(ranker.dsn)
    try:

        async def is_listed() -> bool:
            query = "SELECT status FROM refusals WHERE project_id = $1 AND endpoint = $2 AND param = 'documents'"
            return bool(await conn.fetchval(query, ranker.tenant.project_id, path) == 400)

        await until(is_listed, f"no refusal of {path} is listed")
    finally:
        await conn.close()


def test_a_model_that_reads_pairs_alone_takes_no_instruction(ranker: Ranker) -> None:
    reply = ranker.ask(query=QUERY, documents=["a"], instruction="Be kind")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "instruction")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
def test_a_model_that_ranks_does_nothing_else(ranker: Ranker, path: str, fields: Body) -> None:
    reply = ranker.ask(path, **fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert "/v1/rerank" in error["message"] and error["param"] == "model"


def test_a_model_for_text_ranks_nothing(house: Any) -> None:
    body = {"model": "tiny", "query": QUERY, "documents": ["a"]}
    reply = httpx.post(f"{house.url}/v1/rerank", json=body, headers={"authorization": f"Bearer {house.globex.key}"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "ranks no documents" in error["message"] and error["param"] == "model"
