"""LiteLLM's documented routing, row by row as `gateway/routing/LITELLM.md` lists it: each node does what its row
says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.document import Document
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.plan import Step
from gateway.domain.routing.policy.walk import walk

PAGE = Path("gateway/routing/LITELLM.md")


class Row(msgspec.Struct, frozen=True):
    """One documented behaviour of LiteLLM, with the equivalent node of our policies."""

    name: str
    there: str
    here: str
    held_by: str

    @property
    def document(self) -> Document:
        """The row's node as a complete policy."""
        return read_document(json.dumps({"root": json.loads(self.here.strip("`"))}).encode())


def rows() -> list[Row]:
    lines = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| LiteLLM")
    ]
    return [Row(*(cell.strip() for cell in line.strip("| ").split(" | "))) for line in lines]


OF_PAGE = {row.name: row for row in rows() if row.held_by == "this page"}


def facts_with(**given: object) -> Facts:
    targets = {"a": TargetFacts(), "b": TargetFacts()} | dict(given.pop("targets", {}))  # type: ignore[call-overload]
    return Facts(**({"route_id": "route_x", "request_id": "req_x", "targets": targets} | given))  # type: ignore[arg-type]


def first_step(document: Document, **given: object) -> Step:
    return walk(document, facts_with(**given)).steps[0]


def follows(error: str) -> Callable[[Document], bool]:
    """Return a check that target "b" is tried after "a" fails with this error, and none after a client's mistake."""

    def holds(document: Document) -> bool:
        one, two = walk(document, facts_with()).steps
        return (one.target, two.target) == ("a", "b") and one.then.get(error) == 1 and "refused" not in one.then

    return holds


def picks_b(**given: object) -> Callable[[Document], bool]:
    """Return a check that requests with these facts go to target "b", and others to "a"."""
    return lambda document: (first_step(document, **given).target, first_step(document).target) == ("b", "a")


def holds_weights(document: Document) -> bool:
    num_a = sum(first_step(document, request_id=f"req_{number}").target == "a" for number in range(1_000))
    return 850 < num_a < 950


def is_sticky_by(field: str) -> Callable[[Document], bool]:
    return lambda document: document.root.weighted is not None and document.root.weighted.sticky == field


def facts_of_times(**seconds: float) -> dict[str, TargetFacts]:
    return {name: TargetFacts(first_token_ms=each, token_ms=1.0) for name, each in seconds.items()}


PRICES = {"a": TargetFacts(input_nanos=9, output_nanos=9), "b": TargetFacts(input_nanos=1, output_nanos=1)}
CHEAPER_A = {"a": PRICES["b"], "b": PRICES["a"]}

HOLDS: dict[str, Callable[[Document], bool]] = {
    "`simple-shuffle` with `weight`, `rpm` or `tpm`": holds_weights,
    "`usage-based-routing`, `-v2`": follows("overloaded"),
    "`latency-based-routing`": lambda document: (
        first_step(document, targets=facts_of_times(a=90, b=9)).target == "b"
        and first_step(document, targets=facts_of_times(a=9, b=90)).target == "a"
    ),
    "`cost-based-routing`": lambda document: (
        first_step(document, targets=PRICES).target == "b" and first_step(document, targets=CHEAPER_A).target == "a"
    ),
    "`provider-budget-routing`": follows("rate_limited"),
    "`auto_router`": follows("rejected"),
    "`fallbacks`, `order`": follows("unavailable"),
    "`context_window_fallbacks`": follows("context_length"),
    "`content_policy_fallbacks`": follows("failed"),
    "`fallbacks` in a request": picks_b(metadata={"spare": "b"}),
    "`num_retries`, `retry_after`, `retry_policy`": lambda document: (
        [each.wait_ms > 0 for each in walk(document, facts_with()).steps] == [False, True, True]
    ),
    "`timeout`, `stream_timeout`": lambda document: (
        follows("timeout")(document) and first_step(document).first_token_ms == 3000
    ),
    "`enable_pre_call_checks`": picks_b(prompt_tokens=5_000),
    "tags, with a default": picks_b(metadata={"tag": "paid"}),
    "`priority`": picks_b(tier="priority"),
    "`session_affinity`": is_sticky_by("metadata.session"),
    "`deployment_affinity`": is_sticky_by("key"),
    "`model_group_alias`": lambda document: first_step(document).target == "a",
    "`silent_model`": lambda document: (
        0 < sum(bool(first_step(document, request_id=f"req_{number}").copies) for number in range(200)) < 60
    ),
    "`abatch_completion_fastest_response`": lambda document: first_step(document).hedge_ms == 200,
}


def test_every_row_with_a_node_is_tried_here_and_no_other() -> None:
    assert OF_PAGE.keys() == HOLDS.keys()
    assert len(rows()) > 30


@pytest.mark.parametrize("name", OF_PAGE)
def test_a_node_does_what_its_row_says(name: str) -> None:
    assert HOLDS[name](OF_PAGE[name].document), OF_PAGE[name].there


def test_rows_without_a_node_name_a_test_or_say_why_there_is_none() -> None:
    defined = set()
    for path in Path("tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    for row in rows():
        if row.name in OF_PAGE:
            continue
        if row.held_by == "–":
            assert row.here.startswith("not built: "), row
        else:
            assert row.held_by.strip("`") in defined, row
