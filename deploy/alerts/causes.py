"""Alerts on causes that need a person before, or without, any objective being missed.

The causes are usage that may never be billed, processes that are down, and work that is slow or lost for a reason that
can be named. Every gateway of an engine exports the engine's own numbers, so these are never summed over gateways.
"""

from __future__ import annotations

from deploy.alerts.alert import Alert, Group

METERING = Group(
    "lorikeet-metering",
    [
        Alert(
            "UsageNotRecorded",
            "min(lorikeet_journal_writable) == 0",
            "page",
            "A gateway cannot write its journal and refuses all requests, since usage could not be billed.",
        ),
        Alert(
            "LedgerBehind",
            "max by (instance) (min_over_time(lorikeet_usage_events_waiting[<5m>])) > 0\n"
            "and sum by (instance) (rate(lorikeet_usage_events_written_total[<5m>])) == 0",
            "page",
            "No usage of {{ $labels.instance }} has reached the ledger for five minutes, though some waits: the "
            "database is away or refuses it.",
            "<1m>",
        ),
        Alert(
            "RequestsUnbilled",
            "max(lorikeet_unbilled_requests) > 0",
            "page",
            "{{ $value }} requests will not be billed: a gateway was lost with its journal.",
        ),
        Alert(
            "UsageDropped",
            "max by (model_name, engine) (increase(lorikeet_usage_dropped_total[<10m>])) > 0",
            "page",
            "The engine {{ $labels.engine }} of {{ $labels.model_name }} dropped usage that no gateway took in time.",
        ),
        Alert(
            "JournalDamaged",
            "sum(increase(lorikeet_journal_damaged_segments_total[<10m>])) > 0",
            "page",
            "A gateway's journal has records that cannot be read; the file was moved aside.",
        ),
        Alert(
            "LedgerDiffers",
            "max by (model_name, engine) (abs(lorikeet_reconciliation_difference_tokens)) > 0",
            "ticket",
            "Ledger and engine {{ $labels.engine }} of {{ $labels.model_name }} differ by {{ $value }} tokens.",
            "<30m>",
        ),
    ],
)

PROCESSES = Group(
    "lorikeet-processes",
    [
        Alert(
            "GatewayDown",
            'up{job="lorikeet"} == 0 or absent(up{job="lorikeet"})',
            "page",
            "Prometheus cannot read the metrics of the gateway {{ $labels.instance }}.",
            "<1m>",
        ),
        Alert(
            "PoolDown",
            "max by (model_name) (lorikeet_engine_up) == 0",
            "page",
            "No engine of {{ $labels.model_name }} serves requests.",
            "<2m>",
        ),
        Alert(
            "EngineDown",
            "max by (model_name, engine) (lorikeet_engine_up) == 0",
            "ticket",
            "The engine {{ $labels.engine }} of {{ $labels.model_name }} serves no requests.",
            "<15m>",
        ),
        Alert(
            "Watchdog",
            "vector(1)",
            "ticket",
            "Always fires. Its absence means that alerts do not arrive.",
        ),
    ],
)

LOAD = Group(
    "lorikeet-load",
    [
        Alert(
            "QueueLong",
            "max by (model_name, engine) (min_over_time(vllm:num_requests_waiting[<10m>])) > 10",
            "ticket",
            "More than ten requests have waited in the engine {{ $labels.engine }} of {{ $labels.model_name }} for ten "
            "minutes.",
        ),
        Alert(
            "CacheFull",
            "max by (model_name, engine) (avg_over_time(vllm:kv_cache_usage_perc[<10m>])) > 0.8\n"
            "and max by (model_name, engine) (rate(vllm:num_preemptions_total[<10m>])) > 0.05",
            "ticket",
            "The KV cache of the engine {{ $labels.engine }} of {{ $labels.model_name }} has been full again and "
            "again, and requests are computed twice.",
        ),
        Alert(
            "AdaptersReloaded",
            "max by (model_name, engine) (min_over_time(lorikeet_adapters_waiting[<10m>])) > 0\n"
            "and max by (model_name, engine) (rate(lorikeet_adapter_evictions_total[<10m>])) > 0.5",
            "ticket",
            "Adapters of {{ $labels.model_name }} evict each other on the engine {{ $labels.engine }}, and requests "
            "wait for them.",
        ),
        Alert(
            "RouteFallsBack",
            "sum by (route) (rate(lorikeet_route_fallbacks_total[<10m>]))\n"
            "/ sum by (route) (rate(lorikeet_route_attempts_total[<10m>])) > 0.2",
            "ticket",
            "{{ $value | humanizePercentage }} of the attempts of the route {{ $labels.route }} fail and go on to "
            "another target.",
            "<10m>",
        ),
    ],
)

LOST = Group(
    "lorikeet-lost",
    [
        Alert(
            "ContentLost",
            "sum by (kind) (increase(lorikeet_content_lost_total[<10m>])) > 0",
            "ticket",
            "Content that was to be kept ({{ $labels.kind }}) could not be stored.",
        ),
        Alert(
            "RefusalsLost",
            "sum(increase(lorikeet_refusals_lost_total[<10m>])) > 0",
            "ticket",
            "Refused requests are missing from the list of refusals.",
        ),
        Alert(
            "ExperimentEventsLost",
            "sum(increase(lorikeet_experiment_notes_lost_total[<10m>])\n"
            "+ increase(lorikeet_experiment_events_dropped_total[<10m>])) > 0",
            "ticket",
            "Requests or votes are missing from the results of experiments.",
        ),
        Alert(
            "ExperimentsBehind",
            "max(lorikeet_experiment_lag_seconds) > 60",
            "ticket",
            "Results of experiments are {{ $value | humanizeDuration }} behind.",
            "<5m>",
        ),
        Alert(
            "ExperimentPaused",
            "sum(increase(lorikeet_experiments_paused_total[<10m>])) > 0",
            "ticket",
            "A guardrail paused an experiment.",
        ),
        Alert(
            "BackgroundResponsesFail",
            'sum(increase(lorikeet_background_responses_total{outcome="failed"}[<30m>]))\n'
            '/ sum(increase(lorikeet_background_responses_total{outcome=~"completed|incomplete|failed"}[<30m>])) > 0.1',
            "ticket",
            "{{ $value | humanizePercentage }} of the background responses of the last half hour failed.",
        ),
    ],
)

CAUSES = (METERING, PROCESSES, LOAD, LOST)
