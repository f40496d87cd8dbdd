"""The words of a refusal about a limit, and what they leave out."""

from __future__ import annotations

import msgspec
import pytest

from gateway.domain.errors import QuotaExceeded
from gateway.domain.limits.limit import Limit, Unit, Window
from gateway.domain.limits.refusal import rate_limit_headers, refusal
from gateway.domain.limits.slices import Entry, Shortage, Slice


def limit(project_id: str | None, unit: Unit = "tokens", window: Window = "day") -> Limit:
    return Limit("lim_x", "org_x", project_id, None, None, unit, window, 1000, True)


def shortage(of: Limit) -> Shortage:
    return Shortage(of, need=5, used=787, reserved=212, now_ns=0, frees_s=None if of.window == "none" else 86_400)


def test_a_tenants_own_limit_shows_its_numbers() -> None:
    error = refusal(shortage(limit("proj_x")), (), "usd")
    assert isinstance(error, QuotaExceeded)
    assert "is 1000 tokens per day: 787 used, 212 reserved by running requests" in error.message
    assert msgspec.to_builtins(error.limit) | {"used": 787, "reserved": 212} == msgspec.to_builtins(error.limit)


def test_people_read_of_money_and_programs_of_nanos() -> None:
    error = refusal(shortage(limit("proj_x", "cost_nanos")), (), "eur")
    assert "is 0.000001 EUR of cost per day: 0.000000787 EUR used, 0.000000212 EUR reserved" in error.message
    assert msgspec.to_builtins(error.limit)["used"] == 787
    balance = refusal(shortage(limit("proj_x", "cost_nanos", "none")), (), "eur")
    assert "The credits of this project come to 0.000001 EUR: 0.000000787 EUR used" in balance.message


@pytest.mark.parametrize(("unit", "window"), [("tokens", "day"), ("requests", "minute"), ("concurrency", "none")])
def test_the_organizations_limit_hides_what_its_other_projects_do(unit: Unit, window: Window) -> None:
    error = refusal(shortage(limit(None, unit, window)), (), "usd")
    shown = msgspec.to_builtins(error.limit)
    assert (shown["scope"], shown["max"], shown["needed"]) == ("organization", 1000, 5)
    assert (shown["used"], shown["reserved"]) == (None, None)
    assert not [number for number in ("787", "212") if number in error.message]
    assert error.retry_after_s is not None


def test_headers_are_about_the_tenants_own_limits() -> None:
    def entry(of: Limit, left: int) -> Entry:
        return Entry(of, Slice((of.id, 0), 86_400, left=left))

    own = entry(limit("proj_x"), 400)
    assert dict(rate_limit_headers([own, entry(limit(None), 3)], 0))["x-ratelimit-remaining-tokens"] == "400"
    assert rate_limit_headers([entry(limit(None), 3)], 0) == ()
