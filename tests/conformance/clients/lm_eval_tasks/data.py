"""Reads the items of the tasks that lm-evaluation-harness asks from the files of this folder."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset

HERE = Path(__file__).parent


def questions(**kwargs: object) -> dict[str, Dataset]:
    return {"test": Dataset.from_json(str(HERE / "questions.jsonl"))}


def texts(**kwargs: object) -> dict[str, Dataset]:
    return {"test": Dataset.from_json(str(HERE / "texts.jsonl"))}
