"""Tests of batches with OpenAI's client."""

import json
import time

import openai as package
import pytest

CHAT = "/v1/chat/completions"


def line(number, ask, url=CHAT, **fields):
    return {"custom_id": str(number), "method": "POST", "url": url, "body": ask | fields}


def begin_batch(openai, lines, endpoint=CHAT, **fields):
    content = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines)
    file = openai.files.create(file=("lines.jsonl", content.encode()), purpose="batch")
    return openai.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def await_end(openai, batch):
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        time.sleep(0.1)
        batch = openai.batches.retrieve(batch.id)
    return batch


def lines_of(openai, file_id):
    return [json.loads(line) for line in openai.files.content(file_id).text.splitlines()]


def test_a_batch_runs_each_line_once(openai, ask, tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [line(number, ask) for number in range(8)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = openai.files.create(file=path, purpose="batch")
    batch = openai.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"topic": "greetings"}
    )
    batch = await_end(openai, batch)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 8, None)
    found = lines_of(openai, batch.output_file_id)
    assert {line["custom_id"] for line in found} == {line["custom_id"] for line in lines}
    assert sum(line["response"]["body"]["usage"]["total_tokens"] for line in found) == batch.usage.total_tokens
    assert batch.id in [each.id for each in openai.batches.list(limit=5)]


def test_one_file_names_a_base_and_adapters(openai, ask, place):
    models = [place.base, f"{place.base}:pirate", f"{place.base}:json"]
    batch = await_end(
        openai, begin_batch(openai, [line(number, ask, model=model) for number, model in enumerate(models)])
    )
    assert [line["response"]["body"]["model"] for line in lines_of(openai, batch.output_file_id)] == models


def test_lines_that_are_refused_are_in_the_error_file_with_their_status(openai, ask):
    lines = [line("good", ask), line("hot", ask, temperature=9), line("nobody", ask, model="nobody")]
    batch = await_end(openai, begin_batch(openai, lines))
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 1, 2)
    failed = [(each["custom_id"], each["response"]["status_code"]) for each in lines_of(openai, batch.error_file_id)]
    assert failed == [("hot", 400), ("nobody", 404)]


def test_a_batch_of_nothing_but_faults_has_no_output(openai, ask):
    batch = await_end(openai, begin_batch(openai, [line("hot", ask, temperature=9)]))
    assert (batch.status, batch.output_file_id) == ("completed", None) and batch.error_file_id


def test_a_file_that_is_wrong_fails_the_batch_and_names_the_line(openai, ask):
    batch = await_end(openai, begin_batch(openai, [line("one", ask), "{not json", line("one", ask)]))
    assert batch.status == "failed"
    assert [(each.line, each.code) for each in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
    ]


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
        ("/v1/embeddings", {"input": "Hello"}),
    ],
)
def test_every_endpoint_runs_in_batches(openai, place, url, fields):
    body = {"model": place.model}
    batch = await_end(openai, begin_batch(openai, [line(number, body, url, **fields) for number in range(2)], url))
    assert batch.request_counts.completed == 2
    assert batch.usage.input_tokens > 0


def test_a_batch_is_cancelled(openai, ask):
    batch = begin_batch(openai, [line(number, ask, max_tokens=64) for number in range(200)])
    assert openai.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = await_end(openai, openai.batches.retrieve(batch.id))
    assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
    with pytest.raises(package.NotFoundError):
        openai.batches.retrieve("batch_none")
