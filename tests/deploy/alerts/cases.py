"""Cases for each alert: series of samples on which it fires, and similar series on which it must not."""

from __future__ import annotations

from typing import NamedTuple

Series = dict[str, str]
"""The samples of each series in promtool's notation, such as "0+60x10" for a counter that grows by 60 a minute."""


class Case(NamedTuple):
    """The cases of one alert."""

    fires: Series
    """Series after whose `minutes` the alert fires."""
    silent: Series
    """Series after whose `minutes` the alert is silent."""
    minutes: int = 20
    window: str = ""
    """The label `window` of the alert that is meant, where several alerts have one name."""
    step_minutes: int = 1
    """The minutes from sample to sample."""


def _requests(failed: int, cut: int, num: int) -> Series:
    """Return the series of `num` requests a minute, of which some fail or are cut off."""
    of_route = 'method="POST",route="/v1/chat/completions"'
    return {
        f'lorikeet_http_requests_total{{{of_route},status="200"}}': f"0+{num - failed}x300",
        f'lorikeet_http_requests_total{{{of_route},status="503"}}': f"0+{failed}x300",
        f'lorikeet_http_requests_total{{{of_route},status="429"}}': f"0+{num}x300",
        'lorikeet_streams_cut_total{route="/v1/chat/completions"}': f"0+{cut}x300",
    }


def _first_tokens(late: int, num: int) -> Series:
    return {
        'vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="2.5"}': f"0+{num - late}x300",
        'vllm:time_to_first_token_seconds_bucket{model_name="tiny",le="+Inf"}': f"0+{num}x300",
        'vllm:time_to_first_token_seconds_count{model_name="tiny"}': f"0+{num}x300",
    }


def _rises(series: str) -> Case:
    """Return the case of a counter: the alert fires where the counter grows, and not where it stays the same."""
    return Case({series: "0x15 1x20"}, {series: "3x40"})


_ENGINE = '{model_name="tiny",engine="rep_1"}'
_JOB = 'up{job="lorikeet",instance="a"}'
_WINDOWS = (("1h", 150, 130, 80, 1), ("6h", 70, 50, 400, 5), ("1d", 40, 20, 1600, 20), ("3d", 15, 8, 4620, 60))
"""The rows of burn-rate windows.

Each has the window, the failures among 10,000 requests that fire, failures that do not, the minutes until then, and the
minutes between samples.
"""

CASES: list[tuple[str, Case]] = [
    *(
        ("RequestsFail", Case(_requests(fires, 0, 10_000), _requests(silent, 0, 10_000), minutes, window, step))
        for window, fires, silent, minutes, step in _WINDOWS
    ),
    ("RequestsFail", Case(_requests(8, 8, 1000), _requests(6, 6, 1000), 80, "1h")),
    (
        "RequestsFail",
        Case(
            _requests(1, 0, 1),
            {'lorikeet_http_requests_total{method="POST",route="/v1/embeddings",status="500"}': "0x60 5x20"},
            80,
            "1h",
        ),
    ),
    *(
        (
            "FirstTokensLate",
            Case(_first_tokens(50 * fires, 10_000), _first_tokens(50 * silent, 10_000), minutes, window, step),
        )
        for window, fires, silent, minutes, step in _WINDOWS
    ),
    (
        "UsageNotRecorded",
        Case({'lorikeet_journal_writable{pid="1"}': "1x10 0x10"}, {'lorikeet_journal_writable{pid="1"}': "1x20"}),
    ),
    (
        "LedgerBehind",
        Case(
            {"lorikeet_usage_events_waiting": "0+2x20", "lorikeet_usage_events_written_total": "100x20"},
            {"lorikeet_usage_events_waiting": "0+2x20", "lorikeet_usage_events_written_total": "0+9x20"},
        ),
    ),
    ("RequestsUnbilled", Case({"lorikeet_unbilled_requests": "0x5 2x20"}, {"lorikeet_unbilled_requests": "0x20"})),
    ("UsageDropped", _rises(f"lorikeet_usage_dropped_total{_ENGINE}")),
    ("JournalDamaged", _rises("lorikeet_journal_damaged_segments_total")),
    (
        "LedgerDiffers",
        Case(
            {f"lorikeet_reconciliation_difference_tokens{_ENGINE}": "-5x60"},
            {f"lorikeet_reconciliation_difference_tokens{_ENGINE}": "0x20 7x10 0x30"},
            45,
        ),
    ),
    ("GatewayDown", Case({_JOB: "1x10 0x20"}, {_JOB: "1x20"})),
    ("GatewayDown", Case({}, {_JOB: "1x20"})),
    (
        "PoolDown",
        Case(
            {f'lorikeet_engine_up{{model_name="tiny",engine="rep_{at}"}}': "1x10 0x20" for at in (1, 2)},
            {
                'lorikeet_engine_up{model_name="tiny",engine="rep_1"}': "0x30",
                'lorikeet_engine_up{model_name="tiny",engine="rep_2"}': "1x30",
            },
        ),
    ),
    (
        "EngineDown",
        Case(
            {f'lorikeet_engine_up{{model_name="tiny",engine="rep_1",instance="{at}"}}': "1x10 0x40" for at in "ab"},
            {
                'lorikeet_engine_up{model_name="tiny",engine="rep_1",instance="a"}': "1x50",
                'lorikeet_engine_up{model_name="tiny",engine="rep_1",instance="b"}': "0x50",
            },
            40,
        ),
    ),
    (
        "QueueLong",
        Case(
            {f"vllm:num_requests_waiting{_ENGINE}": "50x30"}, {f"vllm:num_requests_waiting{_ENGINE}": "50x15 0 50x15"}
        ),
    ),
    (
        "CacheFull",
        Case(
            # A request that is put back leaves room for a moment, so the cache is not full all the time.
            {
                f"vllm:kv_cache_usage_perc{_ENGINE}": "1 0.8 0.95 0.85 0.9 1 0.8 0.95 0.85 0.9 1 0.8 0.95 0.85 0.9x20",
                f"vllm:num_preemptions_total{_ENGINE}": "0+6x30",
            },
            {f"vllm:kv_cache_usage_perc{_ENGINE}": "0.99x30", f"vllm:num_preemptions_total{_ENGINE}": "6x30"},
        ),
    ),
    (
        "AdaptersReloaded",
        Case(
            {f"lorikeet_adapters_waiting{_ENGINE}": "3x30", f"lorikeet_adapter_evictions_total{_ENGINE}": "0+60x30"},
            {f"lorikeet_adapters_waiting{_ENGINE}": "0x30", f"lorikeet_adapter_evictions_total{_ENGINE}": "0+60x30"},
        ),
    ),
    (
        "RouteFallsBack",
        Case(
            {
                'lorikeet_route_attempts_total{route="p/r",outcome="served"}': "0+7x40",
                'lorikeet_route_attempts_total{route="p/r",outcome="failed"}': "0+3x40",
                'lorikeet_route_fallbacks_total{route="p/r",error="failed"}': "0+3x40",
            },
            {
                'lorikeet_route_attempts_total{route="p/r",outcome="served"}': "0+9x40",
                'lorikeet_route_attempts_total{route="p/r",outcome="failed"}': "0+1x40",
                'lorikeet_route_fallbacks_total{route="p/r",error="failed"}': "0+1x40",
            },
            30,
        ),
    ),
    ("ContentLost", _rises('lorikeet_content_lost_total{kind="log"}')),
    ("RefusalsLost", _rises("lorikeet_refusals_lost_total")),
    (
        "ExperimentEventsLost",
        Case(
            {"lorikeet_experiment_notes_lost_total": "0x30", "lorikeet_experiment_events_dropped_total": "0x15 1x20"},
            {"lorikeet_experiment_notes_lost_total": "4x30", "lorikeet_experiment_events_dropped_total": "4x30"},
        ),
    ),
    (
        "ExperimentsBehind",
        Case(
            {"lorikeet_experiment_lag_seconds": "0x5 90x20"}, {"lorikeet_experiment_lag_seconds": "90x2 2x10 90x2 2x20"}
        ),
    ),
    ("ExperimentPaused", _rises("lorikeet_experiments_paused_total")),
    (
        "BackgroundResponsesFail",
        Case(
            {
                'lorikeet_background_responses_total{outcome="completed"}': "0+4x40",
                'lorikeet_background_responses_total{outcome="failed"}': "0+1x40",
            },
            {
                'lorikeet_background_responses_total{outcome="completed"}': "0+20x40",
                'lorikeet_background_responses_total{outcome="failed"}': "0+1x40",
                'lorikeet_background_responses_total{outcome="put_back"}': "0+30x40",
            },
            40,
        ),
    ),
]
