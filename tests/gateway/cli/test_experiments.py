"""Experiments from the command line: a whole life, with flags or a file, in words and in JSON."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.command import build_parser
from gateway.cli.experiments.arguments import parse_part, parse_share, past_time
from gateway.cli.experiments.demo import NUM_REQUESTS
from gateway.cli.experiments.verify import OtherDatabase, recount
from gateway.db.pool import Database
from gateway.pools.first_pool import ensure_first_pool
from tests.gateway.admin_server import AdminServer
from tests.gateway.bases import BASE_DIGEST, put_adapter
from tests.gateway.cli.conftest import Cli
from tests.installation.databases import Databases

OF_ACME = ("--tenant", "acme")
CREATE = (
    *("experiment", "create", "tone", "--model", "bot", "--arm", "control=tiny:support@1"),
    *("--arm", "warm=tiny:support@2", "--primary", "cost_nanos:decrease", "--guardrail", "error_rate:pause"),
)


@pytest.fixture
async def acme(lorikeet: Cli, database: Database) -> Any:
    """Return a tenant with an adapter of two versions."""
    tenant = await lorikeet.json("tenant", "create", "acme")
    async with database.acquire() as conn:
        await ensure_first_pool(
            conn, "tiny", model="demo", folder=Path("/x"), base_digest=BASE_DIGEST, address="ipc:///run/nobody.sock"
        )
        for letter in "ab":
            await put_adapter(conn, tenant["id"], "support", digest=letter * 64, rank=8, size_bytes=1)
    return tenant


async def test_an_experiment_lives_from_flags_to_the_decision(lorikeet: Cli, acme: Any) -> None:
    code, out, err = await lorikeet(*CREATE, "--coverage", "20", "--min-days", "3", *OF_ACME)
    assert (code, out, err) == (
        0,
        "experiment tone is a draft: `lorikeet experiment start tone` starts it\n",
        "",
    )
    made = await lorikeet.json("experiment", "show", "tone", *OF_ACME)
    assert (made["coverage"], made["analysis"]["min_days"]) == (2000, 3)
    assert made["metrics"]["guardrails"][0]["action"] == "pause"
    assert (await lorikeet("experiment", "start", "tone", *OF_ACME))[1] == "experiment tone is running\n"
    _, out, _ = await lorikeet("experiment", "change", "tone", "--weight", "warm=3", "--coverage", "50", *OF_ACME)
    assert out.startswith("experiment tone is at version 2; the new weights hold in some seconds")
    _, out, _ = await lorikeet("experiment", "list", *OF_ACME)
    assert out.splitlines()[1].split()[:5] == ["tone", "running", "bot", "control,", "warm"]
    _, out, _ = await lorikeet("alias", "list", *OF_ACME)
    assert out.splitlines()[1].split()[:5] == ["bot", "-", "-", "-", "tone"]
    _, out, _ = await lorikeet("experiment", "show", "tone", *OF_ACME)
    assert "tiny:support@2" in out and "possible now: pause, stop, change" in out
    for verb, state, until in (
        ("pause", "paused", "it is started again"),
        ("stop", "stopped", "you `decide` for an arm"),
    ):
        _, out, _ = await lorikeet("experiment", verb, "tone", *OF_ACME)
        answers = f"bot is tiny:support@1, the control, for everybody until {until}\n"
        assert out == f"experiment tone is {state}: {answers}"
        _, out, _ = await lorikeet("experiment", "show", "tone", *OF_ACME)
        assert out.startswith(f"tone is {state}; bot is tiny:support@1 for everybody until {until}\n")
    _, out, _ = await lorikeet("experiment", "decide", "tone", "warm", *OF_ACME)
    assert out == "bot is tiny:support@2 for everybody from now on\n"
    _, out, _ = await lorikeet("experiment", "show", "tone", *OF_ACME)
    assert out.startswith("tone is decided; bot became an alias of tiny:support@2\n")
    assert (await lorikeet("experiment", "archive", "tone", *OF_ACME))[1] == "experiment tone is archived\n"
    assert [each["name"] for each in await lorikeet.json("experiment", "list", "--state", "archived", *OF_ACME)] == [
        "tone"
    ]


async def test_a_tenants_own_people_need_no_operators_key(lorikeet: Cli, server: AdminServer, acme: Any) -> None:
    """A key of the tenant with the experiments scope alone manages an experiment's whole life, and nothing of other
    tenants."""
    await lorikeet.json("tenant", "create", "globex")
    made = await lorikeet.json("key", "create", *OF_ACME, "--scope", "experiments")
    own = {"LORIKEET_ADMIN_KEY": made["key"], "LORIKEET_URL": server.url, "LORIKEET_PORT": ""}
    code, out, err = await lorikeet(*CREATE, *OF_ACME, **own)
    assert (code, out.split(":")[0], err) == (0, "experiment tone is a draft", "")
    for argv in (("start",), ("results",), ("health",), ("stop",), ("decide", "warm"), ("archive",)):
        verb, *more = argv
        code, _, err = await lorikeet("experiment", verb, "tone", *more, *OF_ACME, **own)
        assert (code, err) == (0, ""), verb
    assert (await lorikeet.json("experiment", "show", "tone", *OF_ACME))["state"] == "archived"
    code, _, err = await lorikeet("experiment", "list", "--tenant", "globex", **own)
    assert code == 1 and "there is no tenant named 'globex'" in err
    code, _, err = await lorikeet("key", "list", *OF_ACME, **own)
    assert code == 1 and "it needs 'keys.read'" in err
    code, _, err = await lorikeet("experiment", "list", *OF_ACME, **(own | {"LORIKEET_URL": "acme"}))
    assert code == 2 and "'acme' is not a URL" in err


async def test_an_experiment_comes_from_a_file(lorikeet: Cli, acme: Any, tmp_path: Path) -> None:
    await lorikeet.done(*CREATE, *OF_ACME)
    made = await lorikeet.json("experiment", "show", "tone", *OF_ACME)
    body = {name: made[name] for name in ("unit", "coverage", "metrics")}
    body["arms"] = [{name: arm[name] for name in ("name", "weight", "target")} for arm in made["arms"]]
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(body | {"model": "bot-2"}))
    second = await lorikeet.json("experiment", "create", "second", "--file", str(path), *OF_ACME)
    assert (second["name"], second["model"], second["arms"]) == ("second", "bot-2", made["arms"])
    assert (await lorikeet("experiment", "delete", "second", *OF_ACME))[1] == "the draft second is deleted\n"


def test_a_part_of_units_is_refused_more_decimals_than_are_kept() -> None:
    assert [parse_part("12.34"), parse_part("100"), parse_part("0.01%"), parse_share("0"), parse_share("0.5")] == [
        1234,
        10_000,
        1,
        0,
        50,
    ]
    for flag in ("--coverage", "--shadow-share"):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["experiment", "change", "tone", *OF_ACME, flag, "12.345"])
    for wrong in ("12.345", "0.001", "101", "-1", "nan", "half"):
        with pytest.raises(ArgumentTypeError, match=r"at most two decimals|expected a percentage"):
            parse_part(wrong)


def test_a_past_time_is_an_age_a_time_or_unix_seconds() -> None:
    now = time.time()
    assert (past_time("1700000000"), past_time("2026-12-01T09:30")) == (1_700_000_000, 1_796_117_400)
    for age, seconds in (("30m", 1_800), ("2h", 7_200), ("3d", 259_200), ("0s", 0)):
        assert abs(now - seconds - past_time(age)) < 5
    for wrong in ("yesterday", "-5", "3w", "2h ago"):
        with pytest.raises(ArgumentTypeError, match="an age such as 30m"):
            past_time(wrong)


async def test_a_recount_without_a_database_names_the_check_that_a_tenant_can_make(lorikeet: Cli) -> None:
    code, out, err = await lorikeet("experiment", "verify", "tone", *OF_ACME)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "It is for the operator" in err and "`lorikeet experiment export tone analysis --tenant acme`" in err


async def test_a_recount_notices_that_the_database_is_not_the_servers(
    lorikeet: Cli, server: AdminServer, acme: Any, dsn: str, databases: Databases
) -> None:
    """A restored backup of the server's database is refused too, as the experiment has another state there."""
    await lorikeet.done(*CREATE, *OF_ACME)
    await lorikeet.done("experiment", "start", "tone", *OF_ACME)
    key = {"LORIKEET_ADMIN_KEY": server.operator_key, "LORIKEET_URL": server.url, "LORIKEET_PORT": ""}
    verify = ("experiment", "verify", "tone", *OF_ACME)
    code, out, err = await lorikeet(*verify, **key, DATABASE_URL=dsn)
    assert (code, out, err) == (0, "0 of 0 units recounted; every integer is equal\n", "")
    code, out, err = await lorikeet(*verify, **key, DATABASE_URL=await asyncio.to_thread(databases.create, "other"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    told = (
        f"the server at {server.url} has the experiment tone, and the database at DATABASE_URL has no such experiment"
    )
    assert told in err
    found = await lorikeet.json("experiment", "show", "tone", *OF_ACME)
    with pytest.raises(OtherDatabase, match="version 1 of it, running"):
        await recount(dsn, acme["id"], found | {"state": "paused"})


async def test_a_url_without_a_key_of_its_server_is_refused(lorikeet: Cli, server: AdminServer) -> None:
    environ = {"LORIKEET_URL": server.url, "LORIKEET_PORT": ""}
    code, _, err = await lorikeet("tenant", "list", **environ)
    assert code == 3 and "LORIKEET_URL needs LORIKEET_ADMIN_KEY, a key of that server" in err


GUIDE = Path(__file__).parents[3] / "gateway" / "experiments" / "README.md"


async def test_the_guides_first_experiment_is_over_in_five_minutes(lorikeet: Cli, acme: Any, tmp_path: Path) -> None:
    """The guide's definition of an experiment is run with these tests' model; nothing in the definition takes days."""
    text = GUIDE.read_text().split("```json\n", 1)[1].split("```", 1)[0]
    path = tmp_path / "tone.json"
    path.write_text(text.replace("smollm2-135m-instruct:pirate", "tiny:support"))
    await lorikeet.done(
        "experiment", "metric", "create", "thumbs_up", *OF_ACME, "--type", "boolean", "--goal", "increase"
    )
    made = await lorikeet.json("experiment", "create", "--file", str(path), *OF_ACME)
    assert (made["name"], made["analysis"]["min_days"]) == ("support-tone", 0)
    assert made["analysis"]["outcome_window_seconds"] <= 30
    assert made["analysis"]["tightest_at"] == NUM_REQUESTS, (
        "intervals are narrowest at what the traffic of the demo sends"
    )
    for argv in (("start",), ("health",), ("results",), ("stop",), ("decide", "warm")):
        verb, *more = argv
        code, _, err = await lorikeet("experiment", verb, made["name"], *more, *OF_ACME)
        assert (code, err) == (0, ""), verb
        assert f"lorikeet experiment {verb} {made['name']} " in GUIDE.read_text()


async def test_commands_print_the_warnings_of_the_server(lorikeet: Cli, acme: Any) -> None:
    twice = ("--model", "bot", "--arm", "a=tiny", "--arm", "b=tiny", "--primary", "cost_nanos:decrease", *OF_ACME)
    warning = "\nwarning: The arms 'a' and 'b' serve the same with the same values"
    assert warning in (await lorikeet("experiment", "create", "alike", *twice))[1]
    for verb in ("show", "start"):
        assert warning in (await lorikeet("experiment", verb, "alike", *OF_ACME))[1]
    assert warning in (await lorikeet("experiment", "preview", "alike", "--unit", "ann", *OF_ACME))[1]


async def test_an_ended_arm_keeps_no_weight(lorikeet: Cli, acme: Any) -> None:
    await lorikeet.done(*CREATE, "--arm", "base=tiny", *OF_ACME)
    await lorikeet.done("experiment", "start", "tone", *OF_ACME)
    after = await lorikeet.json("experiment", "change", "tone", "--end-arm", "base", *OF_ACME)
    assert [(arm["ended"], arm["weight"]) for arm in after["arms"]] == [(False, 1), (False, 1), (True, 0)]


async def test_a_shadow_arm_is_made_shown_and_given_another_share(lorikeet: Cli, acme: Any) -> None:
    await lorikeet.done(*CREATE, "--shadow", "next=tiny", "--shadow-share", "25", *OF_ACME)
    made = await lorikeet.json("experiment", "start", "tone", *OF_ACME)
    assert (made["shadow"]["share"], made["shadow"]["serves"]["model"]) == (2500, "tiny")
    _, out, _ = await lorikeet("experiment", "show", "tone", *OF_ACME)
    assert "next" in out and "25.0% of requests" in out
    after = await lorikeet.json("experiment", "change", "tone", "--shadow-share", "0", *OF_ACME)
    assert (after["shadow"]["share"], after["shadow"]["name"], after["version"]) == (0, "next", 2)
    _, out, _ = await lorikeet("experiment", "results", "tone", *OF_ACME)
    assert "SHADOW" in out and out.splitlines()[-1] == "No unit has taken part yet."


async def test_results_say_what_may_be_concluded(lorikeet: Cli, acme: Any) -> None:
    await lorikeet.done(*CREATE, *OF_ACME)
    await lorikeet.done("experiment", "start", "tone", *OF_ACME)
    code, out, err = await lorikeet("experiment", "results", "tone", *OF_ACME)
    assert (code, err, out.splitlines()[-1]) == (0, "", "No unit has taken part yet.")
    code, out, err = await lorikeet("experiment", "results", "tone", "--by-age", *OF_ACME)
    assert (code, err) == (0, "") and out.startswith("Nothing yet: the outcome window has less than two days")
    assert (await lorikeet.json("experiment", "results", "tone", "--by-age", *OF_ACME))["data"] == []
    code, out, _ = await lorikeet("experiment", "health", "tone", *OF_ACME)
    assert (code, out.splitlines()[-1]) == (0, "the experiment is healthy")
    code, out, _ = await lorikeet("experiment", "preview", "tone", "--unit", "ann", *OF_ACME)
    assert code == 0 and out in ("the unit gets warm (split)\n", "the unit gets control (split)\n")
    _, out, _ = await lorikeet("experiment", "forget", "ann", *OF_ACME)
    assert out == "the unit is forgotten; 0 experiments knew it\n"


_UNITS = """
    INSERT INTO experiment_units (experiment_id, digest, epoch, arm)
    SELECT $1, decode(md5(number::text), 'hex'), 1, number % 2 FROM generate_series(1, $2) AS s (number)
"""


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def test_an_export_is_written_as_it_comes(lorikeet: Cli, acme: Any, database: Database, tmp_path: Path) -> None:
    num_units, folder = 30_000, tmp_path / "exports"
    folder.mkdir()
    out = folder / "units.jsonl"
    await lorikeet.done(*CREATE, *OF_ACME)
    code, _, err = await lorikeet("experiment", "export", "tone", "exposures", "--out", str(out), *OF_ACME)
    assert (code, out.exists()) == (1, False) and "has not started" in err
    made = await lorikeet.json("experiment", "start", "tone", *OF_ACME)
    async with database.acquire() as conn:
        await conn.execute(_UNITS, made["id"], num_units)
    export = ("experiment", "export", "tone", "exposures", "--format", "jsonl", "--out", str(out), *OF_ACME)
    tracemalloc.start()
    try:
        found = await lorikeet.json(*export)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len({row["unit_digest"] for row in rows}) == num_units
    assert found == {"file": str(out), "num_bytes": out.stat().st_size}
    assert out.stat().st_size > 5_000_000 > peak_bytes, "neither command nor server holds the rows"
    assert (out.stat().st_mode & 0o777, _names(folder)) == (0o600, [out.name])
    nowhere = str(tmp_path / "nowhere" / "x.csv")
    code, _, err = await lorikeet("experiment", "export", "tone", "exposures", "--out", nowhere, *OF_ACME)
    assert (code, err.count("\n")) == (1, 1) and "No such file or directory" in err


async def test_metrics_layers_and_holdouts_are_created_listed_and_deleted(lorikeet: Cli, acme: Any) -> None:
    await lorikeet.done("experiment", "metric", "create", "thumbs-up", *OF_ACME)
    tone = ("experiment", "metric", "create", "tone", "--type", "label", "--label", "warm=1", "--label", "cold=-1")
    assert (await lorikeet.json(*tone, *OF_ACME))["labels"] == {"warm": 1.0, "cold": -1.0}
    await lorikeet.done("experiment", "layer", "create", "search", *OF_ACME)
    await lorikeet.done("experiment", "holdout", "create", "quarter", "2.5", *OF_ACME)
    for what, rows in (
        ("metric", [["thumbs-up", "boolean", "increase", "mean", "-"], ["tone", "label", "increase", "mean", "-"]]),
        ("layer", [["search", "100", "%", "-"]]),
        ("holdout", [["quarter", "2.5", "%"]]),
    ):
        _, out, _ = await lorikeet("experiment", what, "list", *OF_ACME)
        assert [line.split() for line in out.splitlines()[1:]] == rows
    assert (await lorikeet("experiment", "layer", "delete", "search", *OF_ACME))[1] == "layer search is deleted\n"


async def test_wrong_arguments_are_refused_in_one_line(lorikeet: Cli, acme: Any) -> None:
    await lorikeet.done(*CREATE, *OF_ACME)
    for words, exit_code, complaint in (
        (("create", "x"), 2, "give a name, --model, two or more --arm, and --primary; or --file"),
        ((*CREATE[1:], "--weight", "hot=1"), 2, "there is no arm named 'hot'"),
        ((*CREATE[1:], "--arm", "hot"), 2, "--arm: expected NAME=VALUE"),
        ((*CREATE[1:], "--primary", "cost_nanos"), 2, "expected METRIC:increase or METRIC:decrease"),
        (CREATE[1:], 1, "already has an experiment named 'tone'"),
        (("create", "--file", "/nowhere.json"), 1, "/nowhere.json: No such file"),
        (("show", "nothing"), 1, "acme has no experiment named 'nothing'"),
        (("decide", "tone", "warm"), 1, "the experiment is draft"),
        (("results", "tone"), 1, "has not started"),
        (("results", "tone", "--by-age", "--as-of", "5"), 1, "leave out --as-of"),
        (("change", "tone"), 2, "give --coverage, --weight, --end-arm, --shadow-share or --file"),
        (("change", "tone", "--shadow-share", "5"), 2, "--shadow-share: the experiment has no shadow arm"),
        (("create", "x" * 65, *CREATE[3:]), 1, "Invalid value for 'name': expected a string of length <= 64"),
        (("change", "tone", "--end-arm", "hot"), 2, "there is no arm named 'hot'"),
        (("preview",), 1, "Name a `unit`"),
        (
            ("create", "x", "--model", "bad:name", *CREATE[5:]),
            1,
            "Invalid value for 'model': expected 1 to 64 lower-case letters, digits, '.', '_' and '-'",
        ),
        (("calibrate", "smiles"), 1, "Invalid value for 'metric'"),
        (("metric", "create", "x", "--type", "label", "--label", "warm"), 2, "--label: expected NAME=NUMBER"),
        (("layer", "delete", ".."), 1, "is not valid"),
    ):
        code, out, err = await lorikeet("experiment", *words, *OF_ACME)
        assert (code, out) == (exit_code, ""), (words, out, err)
        assert complaint in err and err.count("\n") == 1, (words, err)
