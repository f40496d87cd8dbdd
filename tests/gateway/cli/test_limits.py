"""`lorikeet limit`: set as often as one likes, listed with its usage, removed."""

from __future__ import annotations

import pytest

from gateway.cli import main
from tests.gateway.cli.conftest import Cli


async def test_a_limit_is_set_listed_and_removed(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    kind = ("--tenant", "acme", "--unit", "tokens", "--window", "day")
    first = await lorikeet.json("limit", "set", *kind, "--max", "1000")
    again = await lorikeet.json("limit", "set", *kind, "--max", "2000")
    assert (first["max"], again["max"], first["id"]) == (1000, 2000, again["id"])
    soft = await lorikeet.json("limit", "set", *kind, "--max", "500", "--soft", "--alert", "50")
    assert soft["id"] != first["id"]
    listed = await lorikeet.json("limit", "list", "--tenant", "acme")
    assert [(each["id"], each["hard"], each["used"], each["reserved"], each["free"]) for each in listed] == [
        (first["id"], True, 0, 0, 2000),
        (soft["id"], False, 0, 0, 500),
    ]
    code, out, _ = await lorikeet("limit", "list", "--tenant", "acme")
    header, *rows = out.splitlines()
    assert (code, header.split()[:3], len(rows)) == (0, ["ID", "UNIT", "WINDOW"], 2)
    for removed in ([first["id"]], []):
        assert await lorikeet.json("limit", "remove", *kind) == {"removed": removed}
    assert [each["id"] for each in await lorikeet.json("limit", "list", "--tenant", "acme")] == [soft["id"]]


async def test_a_limit_of_a_model_that_is_not_served_is_set_with_a_warning(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    kind = ("--tenant", "acme", "--unit", "requests", "--window", "day", "--max", "7", "--model")
    code, _, err = await lorikeet("limit", "set", *kind, "tony")
    assert (code, err) == (0, "lorikeet: no model 'tony' is served here, only 'tiny'\n")
    for known in ("tiny", "tiny:support"):
        assert (await lorikeet("limit", "set", *kind, known))[::2] == (0, "")


async def test_the_organization_has_limits_of_its_own(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    kind = ("--organization", "--unit", "concurrency")
    made = await lorikeet.json("limit", "set", *kind, "--max", "7")
    assert (made["scope"], made["max"], made["alert_percents"]) == ("organization", 7, [])
    assert [each["id"] for each in await lorikeet.json("limit", "list", "--organization")] == [made["id"]]
    assert await lorikeet.json("limit", "list", "--tenant", "acme") == []
    assert await lorikeet.json("limit", "remove", *kind) == {"removed": [made["id"]]}


@pytest.mark.parametrize("owner", [(), ("--organization", "--tenant", "acme")])
def test_a_limit_is_the_tenants_or_the_organizations(owner: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["limit", "list", *owner], {})
    assert left.value.code == 2


async def test_limits_of_cost_are_given_and_shown_in_the_currency(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    made = await lorikeet.json(
        "limit", "set", "--tenant", "acme", "--unit", "cost", "--window", "month", "--max", "12.5"
    )
    assert (made["unit"], made["max"], made["free"]) == ("cost", 12.5, 12.5)
    tiny = ("limit", "set", "--tenant", "acme", "--unit", "cost", "--window", "day", "--max", "0.00000765")
    assert (await lorikeet(*tiny))[1].endswith(": at most 0.00000765 cost per day\n")
    _, out, _ = await lorikeet("limit", "list", "--tenant", "acme")
    assert sorted(line.split()[5] for line in out.splitlines()[1:]) == ["0.00000765", "12.50"]


async def test_limits_that_cannot_be_are_refused_in_one_line(lorikeet: Cli) -> None:
    await lorikeet.json("tenant", "create", "acme")
    code, _, err = await lorikeet("limit", "set", "--tenant", "acme", "--unit", "requests", "--max", "1")
    assert (code, err) == (
        1,
        "lorikeet: Invalid value for 'window': it must be 'minute', 'day' or 'month' with the unit 'requests'.\n",
    )
    code, _, err = await lorikeet("limit", "list", "--tenant", "nobody")
    assert (code, "no tenant named 'nobody'" in err) == (1, True)
    code, _, err = await lorikeet("limit", "set", "--tenant", "acme", "--unit", "tokens", "--max", "1.5")
    assert (code, err) == (2, "lorikeet: --max: expected a whole number of tokens\n")


@pytest.mark.parametrize("most", ["-1", "many", "nan", "1e400000000"])
def test_a_maximum_is_a_number(most: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["limit", "set", "--tenant", "acme", "--unit", "tokens", f"--max={most}"], {})
    assert left.value.code == 2
