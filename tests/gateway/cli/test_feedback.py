"""Feedback and exports of experiments from the command line, against a live gateway."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.exports.experiments.recompute import recompute
from tests.gateway.cli.conftest import Cli
from tests.gateway.evaluation.conftest import Site, other, site
from tests.gateway.evaluation.test_judges import vote_as_people_and_a_judge

__all__ = ["other", "site"]


@pytest.fixture
def lorikeet(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    (tmp_path / "operator.key").write_text(f"{site.house.operator_key}\n")
    environ = {"LORIKEET_DATA_DIR": str(tmp_path), "LORIKEET_PORT": str(urlsplit(site.house.url).port)}
    return Cli(environ | {"LORIKEET_API_KEY": site.key.headers["authorization"].removeprefix("Bearer ")}, capsys)


async def test_a_vote_is_kept_as_it_was_given(lorikeet: Cli, site: Site) -> None:
    request = ("feedback", "add", "--request", await site.request())
    made = await lorikeet.json(*request, "--metric", "thumbs_up", "--value", "true", "--id", "a", "--source", "human")
    kept = (await site.client.get(f"/v1/feedback/{made['id']}")).json()
    assert (kept["value"], kept["source"]) == (True, "human")
    for value in ("4", "2.5"):
        code, out, err = await lorikeet(*request, "--metric", "stars", "--value", value)
        assert (code, err) == (0, "") and out.startswith("the vote fb_")
    assert out.endswith("is kept; it replaces an earlier one\n")
    about_unit = ("feedback", "add", "--unit", "ann", "--metric", "mood", "--value", "good", "--comment", "fine")
    assert (await lorikeet(*about_unit))[0] == 0
    assert await site.counted() == [("mood", 1_000_000), ("stars", 2_500_000), ("thumbs_up", 1)]


async def test_a_vote_that_is_refused_says_why_in_one_line(lorikeet: Cli, site: Site, other: Site) -> None:
    for about, words in (
        (("--request", await other.request(), "--metric", "thumbs_up"), "No request of an experiment"),
        (("--request", await site.request(), "--metric", "nothing"), "no metric of this name"),
    ):
        code, _, err = await lorikeet("feedback", "add", *about, "--value", "true")
        assert code == 1 and words in err and err.count("\n") == 1


async def test_an_export_is_a_private_file_of_which_the_script_makes_results(
    lorikeet: Cli, site: Site, tmp_path: Path
) -> None:
    vote = await site.vote(request_id=await site.request())
    tenant = ("--tenant", await site.conn.fetchval("SELECT name FROM projects WHERE id = $1", site.key.project_id))
    out = tmp_path / "votes.jsonl"
    export = ("experiment", "export", site.experiment_id)
    code, _, err = await lorikeet(*export, "feedback", "--format", "jsonl", "--out", str(out), *tenant)
    assert (code, err) == (0, "")
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [vote["id"]]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    written = out.read_text()
    code, _, err = await lorikeet(*export, "feedback", "--format", "jsonl", "--out", str(out), *tenant)
    assert (code, err) == (1, f"lorikeet: {out} exists already: --force replaces it\n")
    assert await lorikeet.done(*export, "feedback", "--format", "jsonl", "--out", "-", *tenant) == written
    await lorikeet.done(*export, "feedback", "--format", "jsonl", "--out", str(out), "--force", *tenant)
    await lorikeet.json(*export, "analysis", "--out", str(tmp_path / "sums.json"), *tenant)
    shown = recompute(json.loads(out.with_name("sums.json").read_text()))
    assert [arm["name"] for arm in shown["arms"]] == ["control", "warm"]
    code, _, err = await lorikeet(*export, "analysis", "--format", "csv", *tenant)
    assert code == 1 and "analysis come as json" in err


async def test_results_show_what_people_would_say_with_the_help_of_a_judge(lorikeet: Cli, site: Site) -> None:
    await vote_as_people_and_a_judge(site)
    tenant = await site.conn.fetchval("SELECT name FROM projects WHERE id = $1", site.key.project_id)
    code, out, err = await lorikeet("experiment", "results", site.experiment_id, "--tenant", tenant)
    assert (code, err) == (0, "")
    (row,) = [line for line in out.splitlines() if "20 and 20" in line]
    assert row.split()[:2] == ["thumbs_up", "warm"] and "80 and 80" in row
    assert "BY PEOPLE AND A JUDGE" in out


async def test_traffic_of_the_demo_starts_the_draft_and_votes_about_each_reply(lorikeet: Cli, site: Site) -> None:
    arms = [
        {"name": name, "weight": 1, "target": {"model": "tiny", "defaults": {"temperature": heat}}}
        for name, heat in (("control", 0.0), ("warm", 0.5))
    ]
    draft = {"name": "tone", "model": "tone", "unit": {"from": "safety_identifier"}, "arms": arms}
    draft |= {"metrics": {"primary": [{"metric": "thumbs_up", "goal": "increase"}]}}
    headers = {"authorization": f"Bearer {site.house.operator_key}"}
    project = f"/v1/organization/projects/{site.key.project_id}"
    await site.client.post(f"{project}/experiment_layers", json={"name": "demo"}, headers=headers)
    made = await site.client.post(f"{project}/experiments", json=draft | {"layer": "demo"}, headers=headers)
    assert made.status_code == 200, made.text
    name = await site.conn.fetchval("SELECT name FROM projects WHERE id = $1", site.key.project_id)
    shown = await lorikeet.json("demo", "traffic", "--requests", "25", "--tenant", name)
    assert (shown["experiment"], shown["num_requests"]) == ("tone", 25)
    votes = await site.counted()
    assert len(votes) == 25 and sum(value for _, value in votes) == shown["num_good"]
    assert (await lorikeet("demo", "traffic", "--requests", "1", "--tenant", name))[0] == 0
    await lorikeet.done("experiment", "pause", "tone", "--tenant", name)
    code, _, err = await lorikeet("demo", "traffic", "--requests", "1", "--tenant", name)
    assert code == 1 and "the experiment tone is paused" in err
    code, _, err = await lorikeet("demo", "traffic", "--parallel", "0", "--tenant", name)
    assert code == 2 and "--parallel: expected a number above 0" in err
