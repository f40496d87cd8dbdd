"""Batches with OpenAI's client."""

import json
import time


def test_a_batch_runs_each_line_once(openai, ask, tmp_path):
    path = tmp_path / "lines.jsonl"
    body = {"model": ask["model"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body} for number in range(8)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = openai.files.create(file=path, purpose="batch")
    batch = openai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"topic": "greetings"}
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.2)
        batch = openai.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 8, None)
    found = [json.loads(line) for line in openai.files.content(batch.output_file_id).text.splitlines()]
    assert {line["custom_id"] for line in found} == {line["custom_id"] for line in lines}
    assert sum(line["response"]["body"]["usage"]["total_tokens"] for line in found) == batch.usage.total_tokens
    assert batch.id in [each.id for each in openai.batches.list(limit=5)]
