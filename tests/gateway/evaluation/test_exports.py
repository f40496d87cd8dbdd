"""Exports of an experiment over HTTP: rows and sums in one archive each, the same bytes for the same state."""

from __future__ import annotations

import io
import zipfile

import pytest

from tests.gateway.evaluation.conftest import Site


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("exposures", "csv"), ("outcomes", "parquet"), ("feedback", "jsonl"), ("feedback", "csv"), ("analysis", "json")],
)
async def test_the_same_state_is_the_same_bytes(site: Site, kind: str, suffix: str) -> None:
    made = await site.vote(request_id=await site.request())
    path = f"/v1/organization/projects/{site.key.project_id}/experiments/{site.experiment_id}/exports"
    headers = {"authorization": f"Bearer {site.house.operator_key}"}
    query = {"kind": kind, "format": suffix}
    first, again = [await site.client.get(path, params=query, headers=headers) for _ in range(2)]
    assert first.status_code == 200, first.text
    assert first.content == again.content
    archive = zipfile.ZipFile(io.BytesIO(first.content))
    name = f"{site.experiment_id}-{kind}.{suffix}"
    assert archive.namelist() == [name, f"{name}.manifest.json"]
    assert (made["id"].encode() in archive.read(name)) == (kind == "feedback")
