"""Tests with inspect-ai's own command and `--batch`: an evaluation whose requests it gathers into files and batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from inspect_ai.log import read_eval_log
from openai import OpenAI

NUM_SAMPLES = 12
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def numbers():
    samples = [Sample(input=f"Repeat the number {number}.", target=str(number)) for number in range(%d)]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_an_evaluation_in_batches_ends_with_every_sample_scored(place, tmp_path, record_property, responses):
    (tmp_path / "evaluation.py").write_text(TASK % NUM_SAMPLES)
    (tmp_path / "batch.json").write_text(json.dumps({"size": 5, "max_size": 5, "send_delay": 0.5, "tick": 0.2}))
    with OpenAI() as openai:
        before = {batch.id for batch in openai.batches.list(limit=100)}
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "inspect_ai", "eval", "evaluation.py", "--model", f"openai/{place.model}"),
                *("-M", f"responses_api={str(responses).lower()}", "--batch", "batch.json", "--max-tokens", "16"),
                *("--temperature", "0", "--log-dir", "logs", "--display", "plain", "--no-log-realtime"),
            ],
            cwd=tmp_path,
            env=os.environ | {"INSPECT_TRACE_FILE": str(tmp_path / "trace.log")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        mine = [batch for batch in openai.batches.list(limit=100) if batch.id not in before]
    (path,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(path))
    assert log.status == "success", log.error
    assert log.samples is not None and len(log.samples) == NUM_SAMPLES
    assert all(sample.error is None and sample.scores and sample.output.completion for sample in log.samples)
    assert {batch.status for batch in mine} == {"completed"}
    assert {batch.endpoint for batch in mine} == {"/v1/responses" if responses else "/v1/chat/completions"}
    assert sum(batch.request_counts.completed for batch in mine) == NUM_SAMPLES
    total = sum(usage.total_tokens for usage in log.stats.model_usage.values())
    assert total == sum(batch.usage.total_tokens for batch in mine)
    record_property("figure", f"{NUM_SAMPLES} samples in {len(mine)} batches, {total} tokens")
