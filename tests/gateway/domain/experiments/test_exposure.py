"""Traces of an experiment's request: a header as of RFC 9651, a log line without the unit, an id to vote by."""

from __future__ import annotations

import re

import pytest

from gateway.db.ids import new_id
from gateway.domain.experiments.assignment import OPEN_FEATURE_REASONS, Reason, unit_digest
from gateway.domain.experiments.exposure import Exposure, log_id
from gateway.domain.experiments.feedback.vote_ids import is_signed, request_id_of, signed_id

KEY = bytes(range(32))
_ITEM = re.compile(r'"[ !#-\[\]-~]*"(;[a-z][a-z0-9_.*-]*=(-?[0-9]{1,15}|"[ !#-\[\]-~]*"|[A-Za-z*][A-Za-z0-9:/_.*-]*))*')
"""The pattern of a string with parameters that are integers, strings or tokens (RFC 9651)."""


@pytest.mark.parametrize("reason", list(OPEN_FEATURE_REASONS))
def test_the_header_is_a_structured_field_and_the_log_line_has_no_unit(reason: Reason) -> None:
    digest = unit_digest(KEY, "ann@example.com")
    exposure = Exposure("exp_1", "support-tone", 3, 1, "warm", 1, reason, digest)
    assert _ITEM.fullmatch(exposure.header)
    assert exposure.header == f'"support-tone";v=3;arm="warm";reason={OPEN_FEATURE_REASONS[reason]}'
    assert exposure.log_fields("proj_1") == {
        "feature_flag.provider.name": "lorikeet",
        "feature_flag.set.id": "proj_1",
        "feature_flag.key": "support-tone",
        "feature_flag.version": "3",
        "feature_flag.result.variant": "warm",
        "feature_flag.result.reason": OPEN_FEATURE_REASONS[reason],
        "feature_flag.context.id": log_id(digest),
    }
    assert digest.hex() not in log_id(digest) and log_id(digest) not in digest.hex()


def test_without_a_unit_the_log_line_has_no_digest() -> None:
    assert "feature_flag.context.id" not in Exposure("exp_1", "a", 1, 0, "control", 0, "no_unit").log_fields("proj_1")


@pytest.mark.parametrize("prefix", ["chatcmpl-", "cmpl-", "resp_", "req_"])
def test_an_id_proves_which_project_it_is_of(prefix: str) -> None:
    request_id = new_id("req")
    shown = prefix + signed_id(KEY, request_id).removeprefix("req_")
    assert (request_id_of(shown), is_signed(KEY, shown)) == (request_id, True)
    assert not is_signed(bytes(32), shown)
    for at in range(len(prefix), len(shown)):
        other = "a" if shown[at] != "a" else "b"
        assert not is_signed(KEY, shown[:at] + other + shown[at + 1 :])


@pytest.mark.parametrize(
    "wrong", ["", "chatcmpl-", "req_", "x", "chatcmpl-é", "req_" + "b" * 24, "chatcmpl-" + "a" * 32]
)
def test_an_id_that_nobody_made_proves_nothing(wrong: str) -> None:
    assert not is_signed(KEY, wrong)
