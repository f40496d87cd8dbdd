"""Routes from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.cli.conftest import Cli

OF_ACME = ("--tenant", "acme")


async def test_a_route_is_created_changed_explained_and_deleted(lorikeet: Cli, tmp_path: Path) -> None:
    await lorikeet.json("tenant", "create", "acme")
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"root": {"target": "tiny"}}))
    made = await lorikeet.json("route", "create", "router", str(file), *OF_ACME)
    assert made["version"] == 1
    two = {"root": {"fallback": {"nodes": [{"target": "tiny"}, {"target": "tiny"}]}}}
    file.write_text(json.dumps(two))
    code, _, err = await lorikeet("route", "create", "router", str(file), *OF_ACME)
    assert (code, "'router' already; an update of that one is a new version" in err) == (1, True)
    told = await lorikeet("route", "update", "router", str(file), *OF_ACME)
    assert told == (0, "route router of acme answers with version 2\n", "")
    code, out, _ = await lorikeet("route", "list", *OF_ACME)
    assert (code, out.split()[:7]) == (0, ["NAME", "VERSION", "TARGETS", "CHANGED", "router", "2", "tiny"])
    shown = await lorikeet.json("route", "show", "router", *OF_ACME)
    assert (shown["document"], len(shown["versions"])) == (two, 2)
    code, out, _ = await lorikeet("route", "explain", "router", "--metadata", "plan=free", "--user", "ann", *OF_ACME)
    assert code == 0 and "root: fallback: 2 in turn" in out and "overloaded -> 1" in out
    file.write_text(json.dumps({"root": {"target": "router"}}))
    code, _, err = await lorikeet("route", "create", "other", str(file), *OF_ACME)
    assert (code, "no model 'router'; another route can be no target" in err) == (1, True)
    back = await lorikeet.json("route", "rollback", "router", "1", *OF_ACME)
    assert back["document"] == {"root": {"target": "tiny"}}
    told = await lorikeet("route", "delete", "router", *OF_ACME)
    assert told == (0, "route router of acme is deleted\n", "")


async def test_a_wrong_policy_is_said_in_one_line(lorikeet: Cli, tmp_path: Path) -> None:
    await lorikeet.json("tenant", "create", "acme")
    file = tmp_path / "policy.json"
    wrong = {
        "{": "is not JSON",
        "[]": "holds no policy",
        '{"root": {}}': "document.root",
        '{"root": {"target": "nobody"}}': "has no model 'nobody'",
    }
    for text, complaint in wrong.items():
        file.write_text(text)
        code, out, err = await lorikeet("route", "create", "router", str(file), *OF_ACME)
        assert (code, out) == (1, "")
        assert complaint in err and err.count("\n") == 1


async def test_a_route_for_all_tenants_and_a_request_are_explained(lorikeet: Cli, tmp_path: Path) -> None:
    await lorikeet.json("tenant", "create", "acme")
    file, body = tmp_path / "policy.json", tmp_path / "body.json"
    file.write_text(json.dumps({"root": {"fallback": {"nodes": [{"target": "tiny"}, {"target": "tiny:support"}]}}}))
    told = await lorikeet("route", "create", "everywhere", str(file), "--all-tenants")
    assert told == (0, "route everywhere for all tenants answers with version 1\n", "")
    (listed,) = await lorikeet.json("route", "list", "--all-tenants")
    assert listed["name"] == "everywhere"
    assert (await lorikeet.json("route", "show", "everywhere", "--all-tenants"))["version"] == 1
    key = (await lorikeet.json("key", "create", "--tenant", "acme", "--name", "x"))["id"]
    body.write_text(json.dumps({"model": "everywhere", "messages": [{"role": "user", "content": "x" * 400}]}))
    code, out, err = await lorikeet("route", "explain", "everywhere", "--key", key, "--body", str(body))
    assert (code, err) == (0, "")
    assert "route for all tenants everywhere@1" in out and "about 1" in out
    assert "no such model" in out, "acme has no adapter of this name"
    told = await lorikeet.json("route", "explain", "everywhere", "--key", key, "--body", str(body))
    assert (told["kind"], told["is_allowed"], [each["target"] for each in told["steps"]]) == (
        "shared_route",
        True,
        ["tiny"],
    )
    body.write_text("[]")
    assert "holds no body" in (await lorikeet("route", "explain", "tiny", "--key", key, "--body", str(body)))[2]
    assert (await lorikeet("route", "delete", "everywhere", "--all-tenants"))[0] == 0
