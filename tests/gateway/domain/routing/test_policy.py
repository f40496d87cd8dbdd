"""Routing policies: a wrong document is refused by the path of its node, and every walk ends in a sensible plan,
each time the same."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.document import (
    MAX_DEPTH,
    MAX_LEAVES,
    MAX_NODES,
    MAX_STEPS,
    copy_targets_of,
    metadata_keys,
    nodes_of,
    num_steps,
    targets_of,
)
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.plan import Copy, edges_to
from gateway.domain.routing.policy.walk import FIRST_WAIT_MS, walk

NUM_DOCUMENTS = 10_000
ERRORS = ("unavailable", "overloaded", "rate_limited", "timeout", "failed", "context_length")
MODELS = ("a", "b", "c", "d:x", "e:y@2")


CASCADE: dict[str, Any] = {"cascade": {"nodes": [{"target": "a"}] * 2, "accept": {"regex": "a"}}}


def target(name: str) -> dict[str, Any]:
    return {"target": name}


def read(root: object) -> Any:
    return read_document(json.dumps({"root": root}).encode())


def facts(*, usable: str = "abc", **given: Any) -> Facts:
    targets = {name: TargetFacts() for name in usable} | given.pop("targets", {})
    return Facts(**({"route_id": "route_x", "request_id": "req_x", "targets": targets} | given))


def random_node(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = ("weighted", "fallback", "conditional", "cheapest", "fastest", "cascade", "hedge", "shadow")
    kind = draw.choice(("target", "target", *kinds))
    if kind == "target" or depth >= 4:
        return target(draw.choice(MODELS))
    nodes = [random_node(draw, depth + 1) for _ in range(draw.randint(1, 2))]
    match kind:
        case "weighted":
            choices = [{"weight": draw.randint(1, 9), "node": each} for each in nodes]
            return {kind: {"choices": choices, "sticky": draw.choice((None, "user", "key", "metadata.plan"))}}
        case "fallback":
            on = draw.sample(ERRORS, draw.randint(0, len(ERRORS)))
            bound_ms, rounds = draw.choice((None, 100, 9000)), draw.choice((1, 1, 1, 3))
            return {kind: {"nodes": nodes, "on": on, "rounds": rounds, "first_token_ms": bound_ms}}
        case "cascade":
            accept = draw.choice(({"regex": "a+"}, {"min_logprob": -0.5}, {"schema": {"type": "object"}}))
            return {kind: {"nodes": [*nodes, target(draw.choice(MODELS))], "accept": accept}}
        case "hedge":
            return {kind: {"node": nodes[0], "delay_ms": draw.choice((None, 200))}}
        case "shadow":
            share = draw.choice((0.1, 1.0))
            return {kind: {"node": nodes[0], "target": draw.choice(MODELS), "share": share}}
        case "conditional":
            when: dict[str, Any] = draw.choice(
                ({"tools": True}, {"prompt_tokens": {"min": 9}}, {"metadata": {"plan": ["x", "y"]}}, {"tier": "flex"})
            )
            return {kind: {"cases": [{"when": when, "node": each} for each in nodes], "otherwise": target("a")}}
        case _:
            return {kind: {"nodes": nodes}}


def random_facts(draw: random.Random) -> Facts:
    targets = {
        name: TargetFacts(
            is_usable=draw.random() < 0.8,
            is_ready=draw.random() < 0.8,
            input_nanos=draw.randint(0, 9),
            output_nanos=draw.randint(0, 9),
            first_token_ms=draw.choice((None, 10.0, 500.0)),
            late_ms=draw.choice((None, 900.0)),
        )
        for name in MODELS
        if draw.random() < 0.9
    }
    return facts(
        usable="",
        targets=targets,
        request_id=f"req_{draw.random()}",
        user=draw.choice((None, "ann", "bob")),
        metadata={"plan": draw.choice((None, "x", "z"))},
        num_prompts=draw.choice((1, 1, 2)),
        prompt_tokens=draw.randint(0, 20),
        tools=draw.random() < 0.5,
        tier=draw.choice(("default", "flex")),
    )


def test_every_walk_ends_in_the_same_plan_each_time_and_never_goes_back() -> None:
    draw = random.Random(7)
    num_tried = 0
    for _ in range(NUM_DOCUMENTS):
        try:
            document = read(random_node(draw, 1))
        except InvalidRequest as error:
            assert "more than" in error.message or "no other cascade" in error.message
            continue
        given = random_facts(draw)
        plan = walk(document, given)
        again = read_document(msgspec.json.encode(document))  # as it is kept, and as explain reads it
        assert walk(again, msgspec.json.decode(msgspec.json.encode(given), type=Facts)) == plan
        leaves = {path: node.target for path, node, _ in nodes_of(document) if node.target}
        has_rounds = any(node.fallback.rounds > 1 for _, node, _ in nodes_of(document) if node.fallback)
        assert has_rounds or len({step.path for step in plan.steps}) == len(plan.steps)
        assert len(plan.steps) <= num_steps(document.root) <= MAX_STEPS
        for number, step in enumerate(plan.steps):
            assert leaves[step.path] == step.target and given.targets[step.target].is_usable
            assert all(number < follower < len(plan.steps) for follower in step.then.values())
            assert step.first_token_ms is None or "timeout" in step.then
            assert (step.accept is not None) == ("rejected" in step.then)
            assert not step.wait_ms or (has_rounds and number)
            assert all(given.targets[copy.target].is_usable for copy in step.copies)
        if not plan.steps:  # then a choice led to nothing that can be used
            assert any("passed over" in edge.reason or "can be used" in edge.reason for edge in plan.trace)
        num_tried += len(plan.steps)
    assert num_tried > NUM_DOCUMENTS // 2  # the documents were worth the while


@pytest.mark.parametrize(
    ("root", "path", "why"),
    [
        ({}, "root", "exactly one"),
        ({"target": "a", "cheapest": {"nodes": [{"target": "b"}]}}, "root", "exactly one"),
        ({"fallback": {"nodes": [{"target": "a"}, {}]}}, "root.fallback.nodes[1]", "exactly one"),
        ({"fallback": {"nodes": [{"target": "a"}, {"x": 1}]}}, "root.fallback.nodes[1]", "unknown field `x`"),
        ({"fallback": {"nodes": [{"target": "a"}], "on": ["bad"]}}, "root.fallback.on[0]", "'bad'"),
        ({"weighted": {"choices": [{"weight": 0, "node": {"target": "a"}}]}}, "root.weighted", "above 0"),
        ({"cascade": {"nodes": [{"target": "a"}], "accept": {"regex": "a"}}}, "root.cascade.nodes", "length >= 2"),
        ({"cascade": {"nodes": [{"target": "a"}] * 2, "accept": {}}}, "root.cascade.accept", "says something"),
        (
            {"cascade": {"nodes": [{"target": "a"}] * 2, "accept": {"schema": {"items": {"pattern": "a"}}}}},
            "root.cascade.accept.schema.items.pattern",
            "not checked here",
        ),
        (
            {"cascade": {"nodes": [{"target": "a"}, CASCADE], "accept": {"regex": "a"}}},
            "root.cascade.nodes[1]",
            "no other cascade",
        ),
        ({"fallback": {"nodes": [{"target": "a"}] * 16, "rounds": 5}}, "root.fallback.rounds", "<= 4"),
        (
            {"fallback": {"nodes": [{"fallback": {"nodes": [{"target": "a"}] * 9, "rounds": 4}}], "rounds": 2}},
            "root",
            "more than 64 times",
        ),
        ({"shadow": {"node": {"target": "a"}, "target": "b", "share": 0}}, "root.shadow.share", "> 0"),
        (
            {"weighted": {"choices": [{"weight": 1, "node": {"target": "a"}}], "sticky": "session"}},
            "root.weighted.sticky",
            "metadata.",
        ),
        (
            {"conditional": {"cases": [{"when": {}, "node": {"target": "a"}}], "otherwise": {"target": "b"}}},
            "root.conditional.cases[0].when",
            "says something",
        ),
        (
            {
                "conditional": {
                    "cases": [{"when": {"time": {"from": "8:00", "until": "09:00"}}, "node": {"target": "a"}}],
                    "otherwise": {"target": "b"},
                }
            },
            "root.conditional.cases[0].when.time.from",
            "HH:MM",
        ),
    ],
)
def test_a_wrong_document_is_refused_by_the_path_of_the_node(root: object, path: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(root)
    assert refused.value.param == f"document.{path}"
    assert why in refused.value.message


def test_depth_nodes_targets_and_bytes_are_bounded() -> None:
    deep: dict[str, Any] = target("a")
    for _ in range(MAX_DEPTH):
        deep = {"cheapest": {"nodes": [deep]}}
    many = {"cheapest": {"nodes": [target("a")] * (MAX_LEAVES + 1)}}
    empty: dict[str, Any] = {"cheapest": {"nodes": [target("a")]}}
    wide = {"cheapest": {"nodes": [{"cheapest": {"nodes": [empty] * 8}}] * 8}}
    for root, why in ((deep, "deep"), (many, "targets"), (wide, "more than"), (target("a" * 70_000), "KiB")):
        with pytest.raises(InvalidRequest, match=why):
            read(root)
    with pytest.raises(InvalidRequest):
        read_document(b'{"root":' + b'{"cheapest":{"nodes":[' * 2_500 + b"]}}" * 2_500 + b"}")
    assert MAX_NODES >= MAX_LEAVES


def test_weights_hold_over_requests_and_a_sticky_user_keeps_its_branch() -> None:
    choices = [{"weight": 3, "node": target("a")}, {"weight": 1, "node": target("b")}]
    free, sticky = (read({"weighted": {"choices": choices, "sticky": each}}) for each in (None, "user"))
    plans = [walk(free, facts(request_id=f"req_{i}")) for i in range(4_000)]
    share = sum(plan.steps[0].target == "a" for plan in plans) / len(plans)
    assert abs(share - 0.75) < 0.03
    for user in "uvwxyz":
        assert len({walk(sticky, facts(request_id=f"req_{i}", user=user)).steps[0].path for i in range(20)}) == 1


def test_a_choice_skips_a_target_that_is_down_unless_all_are_down() -> None:
    document = read(
        {"weighted": {"choices": [{"weight": 99, "node": target("a")}, {"weight": 1, "node": target("b")}]}}
    )
    down = TargetFacts(is_ready=False)
    assert walk(document, facts(targets={"a": down})).steps[0].target == "b"
    assert len(walk(document, facts(targets={"a": down, "b": down})).steps) == 1
    assert walk(document, facts(usable="")).steps == ()


def test_the_cheapest_and_the_fastest_are_chosen_by_numbers() -> None:
    two = {"nodes": [target("a"), target("b")]}
    prices = {"a": TargetFacts(input_nanos=1, output_nanos=9), "b": TargetFacts(input_nanos=5, output_nanos=5)}
    assert walk(read({"cheapest": two}), facts(targets=prices, prompt_tokens=900)).steps[0].target == "a"
    assert walk(read({"cheapest": two}), facts(targets=prices, prompt_tokens=9)).steps[0].target == "b"
    times = {"a": TargetFacts(first_token_ms=10, token_ms=9), "b": TargetFacts(first_token_ms=500, token_ms=1)}
    assert walk(read({"fastest": two}), facts(targets=times, max_tokens=8)).steps[0].target == "a"
    assert walk(read({"fastest": two}), facts(targets=times, max_tokens=800)).steps[0].target == "b"


def test_completions_side_by_side_cost_each_and_take_the_time_of_one() -> None:
    two = {"nodes": [target("a"), target("b")]}
    prices = {"a": TargetFacts(input_nanos=1, output_nanos=9), "b": TargetFacts(input_nanos=5, output_nanos=5)}
    chosen = [
        walk(read({"cheapest": two}), facts(targets=prices, prompt_tokens=100, max_tokens=50, n=n)).steps[0].target
        for n in (1, 4)
    ]
    assert chosen == ["a", "b"]
    times = {"a": TargetFacts(first_token_ms=10, token_ms=9), "b": TargetFacts(first_token_ms=500, token_ms=1)}
    for n in (1, 100):
        assert walk(read({"fastest": two}), facts(targets=times, max_tokens=8, n=n)).steps[0].target == "a"


def test_the_branches_to_a_target_are_read_from_its_path() -> None:
    assert edges_to("root") == []
    path = "root.weighted.choices[1].node.conditional.otherwise.fallback.nodes[2]"
    assert edges_to(path) == [
        ("root.weighted", "choices[1]"),
        ("root.weighted.choices[1].node.conditional", "otherwise"),
        ("root.weighted.choices[1].node.conditional.otherwise.fallback", "nodes[2]"),
    ]


def test_a_fallback_within_another_leaves_to_the_outer_one_what_it_does_not_follow() -> None:
    inner = {"fallback": {"nodes": [target("a"), target("b")], "on": ["rate_limited"], "first_token_ms": 50}}
    plan = walk(read({"fallback": {"nodes": [inner, target("c")], "on": ["failed", "timeout"]}}), facts())
    assert [step.target for step in plan.steps] == ["a", "b", "c"]
    assert [step.then for step in plan.steps] == [
        {"failed": 2, "rate_limited": 1, "timeout": 2},
        {"failed": 2, "timeout": 2},
        {},
    ]
    assert [step.first_token_ms for step in plan.steps] == [50, None, None]


def test_a_cascade_goes_on_where_an_answer_is_not_accepted_and_takes_the_last_one_as_it_is() -> None:
    cascade = {"nodes": [target("a"), target("b")], "accept": {"regex": "x"}, "on": ["failed"]}
    plan = walk(read({"fallback": {"nodes": [{"cascade": cascade}, target("c")], "on": ["timeout"]}}), facts())
    assert [step.then for step in plan.steps] == [{"failed": 1, "rejected": 1, "timeout": 2}, {"timeout": 2}, {}]
    assert [step.accept is not None for step in plan.steps] == [True, False, False]
    several = walk(read({"cascade": cascade}), facts(num_prompts=2))
    assert [(step.target, step.accept) for step in several.steps] == [("b", None)]


def test_rounds_begin_after_waits_that_double_and_differ_by_request() -> None:
    document = read({"fallback": {"nodes": [target("a"), target("b")], "rounds": 3, "on": ["failed"]}})
    plans = [walk(document, facts(request_id=f"req_{i}")) for i in range(50)]
    for plan in plans:
        assert [step.target for step in plan.steps] == ["a", "b"] * 3
        assert [step.then for step in plan.steps] == [{"failed": number} for number in range(1, 6)] + [{}]
        first, second = plan.steps[2].wait_ms, plan.steps[4].wait_ms
        assert FIRST_WAIT_MS / 2 <= first <= FIRST_WAIT_MS <= second <= 2 * FIRST_WAIT_MS
        assert [step.wait_ms for step in plan.steps[1::2]] == [0, 0, 0]
    assert len({plan.steps[2].wait_ms for plan in plans}) > 25


def test_a_hedge_waits_as_long_as_late_tokens_took_and_never_where_nothing_was_measured() -> None:
    known = {"a": TargetFacts(late_ms=700.0), "b": TargetFacts()}
    hedge = {"node": {"fallback": {"nodes": [target("a"), target("b")]}}}
    plan = walk(read({"hedge": hedge}), facts(targets=known))
    assert [step.hedge_ms for step in plan.steps] == [700.0, None]
    plan = walk(read({"hedge": hedge | {"delay_ms": 50}}), facts(targets=known))
    assert [step.hedge_ms for step in plan.steps] == [50, 50]


def test_copies_go_out_with_the_branch_that_asks_for_them_and_for_their_share() -> None:
    shadow = {"node": target("a"), "target": "c", "share": 0.25, "payer": "proj_x"}
    document = read({"fallback": {"nodes": [{"shadow": shadow}, target("b")]}})
    plans = [walk(document, facts(request_id=f"req_{i}")) for i in range(2_000)]
    copied = [plan for plan in plans if plan.steps[0].copies]
    assert 0.2 < len(copied) / len(plans) < 0.3
    assert {plan.steps[0].copies for plan in copied} == {(Copy("c", "root.fallback.nodes[0]", "proj_x"),)}
    assert not any(plan.steps[1].copies for plan in plans)
    assert (targets_of(document).keys(), copy_targets_of(document).keys()) == ({"a", "b"}, {"c"})
    gone = [walk(document, facts(usable="ab", request_id=f"req_{i}")) for i in range(100)]
    assert not any(step.copies for plan in gone for step in plan.steps)


def test_a_session_keeps_its_branch() -> None:
    choices = [{"weight": 1, "node": target("a")}, {"weight": 1, "node": target("b")}]
    document = read({"weighted": {"choices": choices, "sticky": "metadata.session"}})
    assert metadata_keys(document) == {"session"}
    chosen = [
        {walk(document, facts(request_id=f"req_{i}", metadata={"session": each})).steps[0].target for i in range(20)}
        for each in map(str, range(20))
    ]
    assert all(len(each) == 1 for each in chosen) and set.union(*chosen) == {"a", "b"}
    assert len({walk(document, facts(request_id=f"req_{i}")).steps[0].target for i in range(20)}) == 2


def test_hours_may_pass_midnight() -> None:
    when = {"time": {"from": "22:00", "until": "06:00"}}
    document = read({"conditional": {"cases": [{"when": when, "node": target("a")}], "otherwise": target("b")}})
    at = {22 * 60: "a", 0: "a", 359: "a", 360: "b", 22 * 60 - 1: "b"}
    assert {minute: walk(document, facts(minute=minute)).steps[0].target for minute in at} == at


def test_the_targets_are_known_with_their_paths() -> None:
    document = read({"fallback": {"nodes": [target("a"), {"cheapest": {"nodes": [target("b"), target("a")]}}]}})
    assert targets_of(document) == {"a": "root.fallback.nodes[0]", "b": "root.fallback.nodes[1].cheapest.nodes[0]"}
