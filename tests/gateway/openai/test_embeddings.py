"""Embeddings of every kind of input, all or none of them, billed one row per input."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx
import openai
import pytest

from engine.fake import fake_embedding
from engine.protocol import GenerateRequest, SamplingParams
from gateway.domain.errors import InvalidRequest
from gateway.openai.embeddings.handler import bounds_of, embedding_request
from gateway.openai.embeddings.wire import EmbeddingsRequest
from gateway.pipeline.bounds import check_numbers
from tests.gateway.conftest import House
from tests.gateway.openai.test_streams import usage_rows
from tests.patience import PATIENCE_S

SIZE = 32


@pytest.fixture
def client(house: House):
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.globex.key, max_retries=0) as client:
        yield client


def expected_embedding(token_ids: list[int], *, pooling: str = "mean", adapter: str = "") -> tuple[float, ...]:
    request = GenerateRequest("r", token_ids, SamplingParams(max_tokens=0), "t", adapter, pooling=pooling)
    return struct.unpack(f"<{SIZE}f", fake_embedding(request, SIZE))


@pytest.mark.parametrize(
    ("given", "token_ids"),
    [
        ("abc", [[64, 65, 66]]),
        (["abc", "cc"], [[64, 65, 66], [66, 66]]),
        ([66, 67], [[66, 67]]),
        ([[66, 67], [68]], [[66, 67], [68]]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_every_kind_of_input_in_both_encodings(client, given, token_ids, encoding):
    fields = {} if encoding is None else {"encoding_format": encoding}
    reply = client.embeddings.create(model="tiny", input=given, **fields)
    assert [each.index for each in reply.data] == list(range(len(token_ids)))
    for each, ids in zip(reply.data, token_ids, strict=True):
        vector = each.embedding
        if encoding == "base64":  # asked for by name, the client leaves it as it is
            vector = struct.unpack(f"<{SIZE}f", base64.b64decode(vector))
        assert list(vector) == pytest.approx(expected_embedding(ids))
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(map(len, token_ids))


def test_the_adapter_and_the_pooling_change_the_answer(client, house: House):
    for model, adapter in [("tiny", ""), ("tiny:poet", house.globex.digest)]:
        for pooling in ("mean", "last"):
            reply = client.embeddings.create(model=model, input=[66, 66, 68], extra_body={"pooling": pooling})
            wanted = expected_embedding([66, 66, 68], pooling=pooling, adapter=adapter)
            assert reply.data[0].embedding == pytest.approx(wanted)
            assert reply.model == model


def test_a_model_that_is_not_trained_for_it_gives_no_shorter_embeddings(client):
    assert len(client.embeddings.create(model="tiny", input="a", dimensions=SIZE).data[0].embedding) == SIZE
    for model in ("tiny", "tiny:poet"):
        for dimensions in (1, 2, SIZE - 1, SIZE + 1):
            with pytest.raises(openai.BadRequestError, match=f"must be {SIZE} or left out") as refused:
                client.embeddings.create(model=model, input="a", dimensions=dimensions)
            assert refused.value.param == "dimensions"


async def test_each_input_is_one_row_of_the_ledger(house: House):
    before = len(await usage_rows(house.dsn, house.globex.project_id, "stop", 0))
    async with httpx.AsyncClient(
        base_url=house.url, headers={"authorization": f"Bearer {house.globex.key}"}, timeout=PATIENCE_S
    ) as http:
        reply = await http.post("/v1/embeddings", json={"model": "tiny:poet", "input": ["a"] * 40})
    assert reply.status_code == 200
    rows = await usage_rows(house.dsn, house.globex.project_id, "stop", before + 40)
    mine = [row for row in rows if row["request_id"].startswith(reply.headers["x-request-id"])]
    assert len(mine) == 40
    assert {(row["prompt_tokens"], row["completion_tokens"], row["model"]) for row in mine} == {(1, 0, "tiny:poet")}
    assert {row["endpoint"] for row in mine} == {"/v1/embeddings"}


def test_more_numbers_than_a_reply_can_show_are_refused_before_any_work() -> None:
    def check(num_inputs: int, size: int, **fields: Any) -> None:
        wire = EmbeddingsRequest(model="tiny", input="x", **fields)
        check_numbers([embedding_request(wire, "x")] * num_inputs, size, bounds_of(wire))

    check(2048, 2048)
    check(2048, 4096, encoding_format="base64")
    check(2048, 4096, dimensions=256)
    for fields in ({}, {"encoding_format": "float"}, {"dimensions": 4096}, {"dimensions": 10_000}):
        with pytest.raises(InvalidRequest, match="numbers") as refused:
            check(2048, 4096, **fields)
        assert refused.value.param == "input"
