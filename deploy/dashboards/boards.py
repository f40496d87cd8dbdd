"""The dashboards: for an operator, of one tenant, of engines, and of the database as gateways see it.

Every gateway exports the figures that engines report: such series are taken at their largest over gateways. Figures
that gateways count themselves are summed.
"""

from __future__ import annotations

from deploy.dashboards.panel import Board, Panel, Query, Variable, quantiles, rate

OF_MODEL = '{model_name=~"$model"}'
OF_TENANT = '{tenant=~"$tenant"}'
REQUESTS = 'lorikeet_http_requests_total{route=~"/v1/.*",route!~"/v1/organization.*"'

OPERATOR = Board(
    "operator",
    "operator",
    "Whether requests are answered, how soon, and what keeps them.",
    [
        Panel(
            "Requests by status",
            [Query(f"sum by (status) (rate({REQUESTS}}}[$__rate_interval]))", "{{status}}")],
            "reqps",
            "Requests of tenants. 5xx are faults of the server; 429 and other 4xx are not.",
        ),
        Panel(
            "Share that a fault failed or cut off",
            [
                Query(
                    f'(sum(rate({REQUESTS},status=~"5.."}}[$__rate_interval])) or vector(0))'
                    f" / clamp_min(sum(rate({REQUESTS}}}[$__rate_interval])), 1e-9)",
                    "failed",
                ),
                Query(
                    "(sum(rate(lorikeet_streams_cut_total[$__rate_interval])) or vector(0))"
                    f" / clamp_min(sum(rate({REQUESTS}}}[$__rate_interval])), 1e-9)",
                    "cut off",
                ),
            ],
            "percentunit",
            "The objective is 0.1 % over 30 days.",
        ),
        Panel(
            "Time to the first token",
            quantiles("vllm:time_to_first_token_seconds", "model_name"),
            "s",
            "From submitting a request to the engine to its first token, by base model.",
        ),
        Panel(
            "Time per token after the first",
            quantiles("vllm:request_time_per_output_token_seconds", "model_name"),
            "s",
            "Grows as more requests are computed together.",
        ),
        Panel(
            "Requests in pools",
            [
                Query("max by (model_name) (lorikeet_pool_requests_running)", "{{model_name}} running"),
                Query("max by (model_name) (lorikeet_pool_requests_waiting)", "{{model_name}} waiting"),
            ],
            "short",
            "Requests that wait for long want more replicas, or lower limits.",
        ),
        Panel(
            "Replicas",
            [
                Query("max by (model_name) (lorikeet_pool_replicas_ready)", "{{model_name}} ready"),
                Query("max by (model_name) (lorikeet_pool_replicas_wanted)", "{{model_name}} wanted"),
            ],
            "short",
            "Fewer ready than wanted for long is a replica that fails, or a host that is gone.",
        ),
        Panel(
            "Oldest wait",
            [Query("max by (model_name) (lorikeet_pool_oldest_wait_seconds)", "{{model_name}}")],
            "s",
            "The age of the oldest request that has no token yet.",
        ),
        Panel(
            "Fallbacks of routes",
            [Query("sum by (route, error) (rate(lorikeet_route_fallbacks_total[$__rate_interval]))")],
            "cps",
            "Attempts at a target that another target followed, by the error.",
        ),
        Panel(
            "Unbilled requests",
            [Query("max(lorikeet_unbilled_requests)", "requests")],
            "short",
            "Anything but 0 is usage that nobody pays for: see the runbook RequestsUnbilled.",
            kind="stat",
            width=6,
        ),
        Panel(
            "Usage that waits for the ledger",
            [Query("sum(lorikeet_usage_events_waiting)", "events")],
            "short",
            "Seconds of traffic are usual; more means that the database is away or slow.",
            kind="stat",
            width=6,
        ),
        Panel(
            "Lost",
            [
                Query("sum(rate(lorikeet_content_lost_total[$__rate_interval]))", "content"),
                Query("sum(rate(lorikeet_refusals_lost_total[$__rate_interval]))", "refusals"),
                Query("sum(rate(lorikeet_experiment_notes_lost_total[$__rate_interval]))", "notes of experiments"),
                Query('sum(rate(lorikeet_trace_spans_total{outcome!="sent"}[$__rate_interval]))', "spans"),
            ],
            "cps",
            "What could not be written or sent, each second. Usage is never among it.",
        ),
    ],
)

TENANT = Board(
    "tenant",
    "tenant",
    "The traffic of tenants, by the ids of their projects; those beyond the first 500 of a gateway are `other`.",
    [
        Panel(
            "Requests by end",
            [
                Query(
                    f"sum by (tenant, finished_reason) (rate(lorikeet_tenant_requests_total{OF_TENANT}"
                    "[$__rate_interval]))",
                    "{{tenant}} {{finished_reason}}",
                )
            ],
            "reqps",
            "By the reason for which requests ended: `abort` is a client that left, `error` a fault.",
        ),
        Panel(
            "Tokens by phase",
            [
                Query(
                    f"sum by (tenant, phase) (rate(lorikeet_tenant_tokens_total{OF_TENANT}[$__rate_interval]))",
                    "{{tenant}} {{phase}}",
                )
            ],
            "cps",
            "Cached tokens are prompt tokens too.",
        ),
        Panel(
            "Time to the first token",
            quantiles("lorikeet_tenant_time_to_first_token_seconds", "tenant", OF_TENANT),
            "s",
            "From submitting a request to the engine to its first token.",
        ),
        Panel(
            "Time per token after the first",
            quantiles("lorikeet_tenant_time_per_output_token_seconds", "tenant", OF_TENANT),
            "s",
            "Over all choices of a request.",
        ),
        Panel(
            "Waiting and running in engines",
            [
                Query(
                    f"sum by (tenant) (max by (tenant, engine) (lorikeet_tenant_requests_running{OF_TENANT}))",
                    "{{tenant}} running",
                ),
                Query(
                    f"sum by (tenant) (max by (tenant, engine) (lorikeet_tenant_requests_waiting{OF_TENANT}))",
                    "{{tenant}} waiting",
                ),
            ],
            "short",
            "Of the busiest tenants alone, as engines report them.",
        ),
        Panel(
            "Time in queues",
            [
                rate("lorikeet_tenant_queue_seconds_total", "tenant", OF_TENANT),
                Query(
                    f"sum by (tenant) (rate(lorikeet_tenant_adapter_wait_seconds_total{OF_TENANT}[$__rate_interval]))",
                    "{{tenant}} for an adapter",
                ),
            ],
            "s",
            "Seconds that requests waited, each second: 3 are three requests that wait at any time.",
        ),
        Panel(
            "Share of service",
            [
                Query(
                    f"sum by (tenant) (max by (tenant, engine) (deriv(lorikeet_tenant_service{OF_TENANT}[5m])))",
                    "{{tenant}}",
                )
            ],
            "cps",
            "Weighted tokens a second; while an engine is saturated, equal for tenants of equal weight.",
        ),
    ],
    [Variable("tenant", "lorikeet_tenant_requests_total", "tenant")],
)

ENGINE = Board(
    "engine",
    "engines",
    "What each engine computes and keeps, as of its last heartbeat.",
    [
        Panel(
            "Running and waiting",
            [
                Query(f"max by (engine) (vllm:num_requests_running{OF_MODEL})", "{{engine}} running"),
                Query(f"max by (engine) (vllm:num_requests_waiting{OF_MODEL})", "{{engine}} waiting"),
            ],
            "short",
            "Choices of interactive requests.",
        ),
        Panel(
            "KV cache in use",
            [Query(f"max by (engine) (vllm:kv_cache_usage_perc{OF_MODEL})", "{{engine}}")],
            "percentunit",
            "Above 90 %, requests lose their cache to others and are computed again.",
        ),
        Panel(
            "Tokens",
            [
                Query(
                    f"max by (engine) (rate(lorikeet_engine_generation_tokens_total{OF_MODEL}[$__rate_interval]))",
                    "{{engine}} generated",
                ),
                Query(
                    f"max by (engine) (rate(lorikeet_engine_prompt_tokens_total{OF_MODEL}[$__rate_interval]))",
                    "{{engine}} prompt",
                ),
            ],
            "cps",
            "Computed each second, again after a preemption included.",
        ),
        Panel(
            "Step",
            quantiles("lorikeet_engine_step_seconds", "engine", OF_MODEL, 0.5, 0.99),
            "s",
            "The pause between two tokens of a stream.",
        ),
        Panel(
            "Preemptions",
            [Query(f"max by (engine) (rate(vllm:num_preemptions_total{OF_MODEL}[$__rate_interval]))", "{{engine}}")],
            "cps",
            "Choices that lost their cache to others, each second.",
        ),
        Panel(
            "Prompt tokens found in the cache",
            [
                Query(
                    f"max by (engine) (rate(vllm:prefix_cache_hits_total{OF_MODEL}[$__rate_interval]))"
                    f" / clamp_min(max by (engine) (rate(vllm:prefix_cache_queries_total{OF_MODEL}"
                    "[$__rate_interval])), 1e-9)",
                    "{{engine}}",
                )
            ],
            "percentunit",
            "The share of looked up prompt tokens; a balancer that knows prompts makes it high.",
        ),
        Panel(
            "Time in the queue",
            quantiles("vllm:request_queue_time_seconds", "model_name", OF_MODEL),
            "s",
            "Of requests that have ended.",
        ),
        Panel(
            "Prefill and decode",
            [
                Query(
                    f"sum by (model_name) (rate(vllm:request_{phase}_time_seconds_sum{OF_MODEL}[$__rate_interval]))"
                    f" / clamp_min(sum by (model_name) (rate(vllm:request_{phase}_time_seconds_count{OF_MODEL}"
                    "[$__rate_interval])), 1e-9)",
                    f"{{{{model_name}}}} {phase}",
                )
                for phase in ("prefill", "decode")
            ],
            "s",
            "Mean time of a request in each phase.",
        ),
        Panel(
            "Adapters",
            [
                Query(f"max by (engine) (lorikeet_adapter_slots_used{OF_MODEL})", "{{engine}} loaded"),
                Query(f"max by (engine) (lorikeet_adapter_slots{OF_MODEL})", "{{engine}} slots"),
                Query(f"max by (engine) (lorikeet_adapters_waiting{OF_MODEL})", "{{engine}} waited for"),
            ],
            "short",
            "Adapters on the device; many that are waited for want more slots.",
        ),
        Panel(
            "Loads and evictions of adapters",
            [
                Query(
                    f"max by (engine) (rate(lorikeet_adapter_loads_total{OF_MODEL}[$__rate_interval]))",
                    "{{engine}} loads",
                ),
                Query(
                    f"max by (engine) (rate(lorikeet_adapter_evictions_total{OF_MODEL}[$__rate_interval]))",
                    "{{engine}} evictions",
                ),
            ],
            "cps",
            "Adapters that come and go all the time are reloaded for want of room.",
        ),
        Panel(
            "Work of batches",
            [
                Query(f"max by (engine) (lorikeet_batch_running{OF_MODEL})", "{{engine}} running"),
                Query(f"max by (engine) (lorikeet_batch_waiting{OF_MODEL})", "{{engine}} waiting"),
            ],
            "short",
            "Choices of the batch band, which is computed in what interactive requests leave.",
        ),
        Panel(
            "Up",
            [Query(f"min by (engine) (lorikeet_engine_up{OF_MODEL})", "{{engine}}")],
            "short",
            "1: the engine serves.",
            kind="stat",
        ),
    ],
    [Variable("model", "lorikeet_engine_up", "model_name")],
)

DATABASE = Board(
    "database",
    "database",
    "The database as gateways see it. PostgreSQL's own figures come from an exporter of yours.",
    [
        Panel(
            "Usage written to the ledger",
            [Query("sum(rate(lorikeet_usage_events_written_total[$__rate_interval]))", "events")],
            "cps",
            "As many as requests end; nothing while the database is away.",
        ),
        Panel(
            "Usage that waits",
            [Query("sum(lorikeet_usage_events_waiting)", "events")],
            "short",
            "Rises while the database is away or slow; gateways keep it on disk.",
        ),
        Panel(
            "Journals",
            [Query("sum(lorikeet_journal_bytes)", "bytes on disk")],
            "bytes",
            "At LORIKEET_JOURNAL_BYTES a gateway refuses requests.",
        ),
        Panel(
            "Journals that take usage",
            [Query("min(lorikeet_journal_writable)", "writable")],
            "short",
            "0: a gateway's disk is full or broken.",
            kind="stat",
        ),
        Panel(
            "Requests that the database failed",
            [Query(f'sum by (route) (rate({REQUESTS},status="503"}}[$__rate_interval]))', "{{route}}")],
            "reqps",
            "503 has other reasons as well, such as a full engine.",
        ),
        Panel(
            "Content that could not be stored",
            [rate("lorikeet_content_lost_total", "kind")],
            "cps",
            "Replies for an Idempotency-Key, stored completions, logged content.",
        ),
        Panel(
            "Ledger against engines",
            [Query("max(abs(lorikeet_reconciliation_difference_tokens))", "tokens of difference")],
            "short",
            "0, but for seconds under load: see the runbook LedgerDiffers.",
        ),
        Panel(
            "Unbilled requests",
            [Query("max(lorikeet_unbilled_requests)", "requests")],
            "short",
            "Requests of journals that are lost.",
        ),
        Panel(
            "Experiments behind",
            [Query("max(lorikeet_experiment_lag_seconds)", "lag")],
            "s",
            "How far results are behind requests.",
        ),
        Panel(
            "Events of experiments that wait",
            [Query("max(lorikeet_experiment_events_waiting)", "events")],
            "short",
            "Events that are not in an experiment's sums yet.",
        ),
    ],
)

BOARDS = (OPERATOR, TENANT, ENGINE, DATABASE)
