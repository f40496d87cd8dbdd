"""Alerts on service level objectives, by how fast they use up the error budget of 30 days.

Several windows and burn rates, as in the SRE Workbook, chapter 5 (sre.google/workbook/alerting-on-slos): a page for 2 %
of the budget in an hour or 5 % in six hours, a ticket for 10 % in a day or in three days. The short window, a twelfth
of the long one, ends an alert soon after its cause. If few requests come, one failed request is no trend: an alert
needs MIN_REQUESTS within its long window.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from deploy.alerts.alert import Alert, Group, Record

MIN_REQUESTS = 20
ROUTES = "/v1/(chat/completions|completions|embeddings|responses|messages)"


class Objectives(NamedTuple):
    """The promises over 30 days.

    availability: the share of requests that no fault of the server fails or cuts off. first_token_share: the share of
    answers whose first token comes within first_token_s seconds, which has to be a bound of a bucket of the histogram
    `vllm:time_to_first_token_seconds`.
    """

    availability: float = 0.999
    first_token_share: float = 0.95
    first_token_s: float = 2.5


class _Burn(NamedTuple):
    """A rate at which the error budget is used up, and the alert for it."""

    long: str
    """The window over which the rate has to be exceeded, such as `1h`."""
    short: str
    """The window over which the rate has to be exceeded as well, so that the alert ends soon after its cause."""
    factor: float
    """The rate of errors, as a multiple of the rate that uses up the budget in exactly 30 days."""
    severity: Literal["page", "ticket"]
    lasts: str
    """The time for which the rate has to be exceeded before the alert fires, as `Alert.lasts`."""


BURNS = (
    _Burn("1h", "5m", 14.4, "page", "<2m>"),
    _Burn("6h", "30m", 6, "page", "<15m>"),
    _Burn("1d", "2h", 3, "ticket", "<1h>"),
    _Burn("3d", "6h", 1, "ticket", "<3h>"),
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


def objective_rules(objectives: Objectives) -> Group:
    """Return the rules that watch the objectives."""
    return Group("lorikeet-objectives", [*_ratios(objectives), *_alerts(objectives)])


def _ratios(objectives: Objectives) -> list[Record]:
    found = []
    for window in WINDOWS:
        asked = f'sum(rate(lorikeet_http_requests_total{{method="POST",route=~"{ROUTES}",status!~"4.."}}[<{window}>]))'
        failed = f'sum(rate(lorikeet_http_requests_total{{method="POST",route=~"{ROUTES}",status=~"5.."}}[<{window}>]))'
        cut = f'sum(rate(lorikeet_streams_cut_total{{route=~"{ROUTES}"}}[<{window}>]))'
        answered = f"sum(rate(vllm:time_to_first_token_seconds_count[<{window}>]))"
        soon = f'sum(rate(vllm:time_to_first_token_seconds_bucket{{le="{objectives.first_token_s}"}}[<{window}>]))'
        found += [
            Record(
                f"lorikeet:request_failures:ratio_rate{window}",
                f"(({failed} or vector(0))\n+ ({cut} or vector(0)))\n/ {asked}",
            ),
            Record(f"lorikeet:late_first_tokens:ratio_rate{window}", f"1 - {soon}\n/ {answered}"),
        ]
    return found


def _alerts(objectives: Objectives) -> list[Alert]:
    found = []
    for burn in BURNS:
        bound = f"{burn.factor} * {round(1 - objectives.availability, 9)}"
        asked = f'lorikeet_http_requests_total{{method="POST",route=~"{ROUTES}",status!~"4.."}}[<{burn.long}>]'
        few = f"sum(increase({asked})) >= {MIN_REQUESTS}"
        found.append(
            Alert(
                "RequestsFail",
                _burning("lorikeet:request_failures", burn, bound) + f"\nand {few}",
                burn.severity,
                f"{{{{ $value | humanizePercentage }}}} of requests of the last {burn.long} failed by a fault of the "
                f"server: {burn.factor:g} times what the objective of {objectives.availability:.4g} allows.",
                burn.lasts,
                burn.long,
            )
        )
        bound = f"{burn.factor} * {round(1 - objectives.first_token_share, 9)}"
        few = f"sum(increase(vllm:time_to_first_token_seconds_count[<{burn.long}>])) >= {MIN_REQUESTS}"
        found.append(
            Alert(
                "FirstTokensLate",
                _burning("lorikeet:late_first_tokens", burn, bound) + f"\nand {few}",
                burn.severity,
                f"{{{{ $value | humanizePercentage }}}} of answers of the last {burn.long} began later than "
                f"{objectives.first_token_s} s: {burn.factor:g} times what the objective of "
                f"{objectives.first_token_share:.4g} allows.",
                burn.lasts,
                burn.long,
            )
        )
    return found


def _burning(series: str, burn: _Burn, bound: str) -> str:
    return f"{series}:ratio_rate{burn.long} > {bound}\nand {series}:ratio_rate{burn.short} > {bound}"
