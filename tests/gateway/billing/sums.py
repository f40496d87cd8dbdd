"""Every sum that is stored beside the ledger, and the same sum computed from the ledger's rows."""

from __future__ import annotations

from tests.gateway.billing.books import Books

MEASURES = (
    "sum(prompt_tokens)::bigint, sum(cached_tokens)::bigint, sum(completion_tokens)::bigint, "
    "sum(input_cost_nanos)::bigint, sum(cached_cost_nanos)::bigint, sum(output_cost_nanos)::bigint, "
    "sum(cost_nanos)::bigint"
)
BY_TIME = {
    width: (
        f"SELECT bucket, project_id, model, endpoint, service_tier, sum(num_requests)::bigint, {MEASURES} "
        f"FROM usage_rollups WHERE width = '{width}' GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5",
        f"SELECT date_trunc('{width}', created_at, 'UTC'), project_id, model, endpoint, service_tier, "
        f"count(*) FILTER (WHERE revision = 0 AND kind = 'usage' AND request_id NOT LIKE '%.%'), {MEASURES} "
        "FROM ledger GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5",
    )
    for width in ("minute", "hour", "day")
}
BY_PERIOD = (
    f"SELECT period, project_id, model, price_version, {MEASURES}, sum(list_cost_nanos)::bigint "
    "FROM period_sums GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
    f"SELECT period, project_id, model, coalesce(price_version, 0), {MEASURES}, sum(list_cost_nanos)::bigint "
    "FROM ledger GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
)


async def assert_sums_equal_the_ledger(books: Books) -> None:
    for sums, ledger in (*BY_TIME.values(), BY_PERIOD):
        assert await books.fetch(sums) == await books.fetch(ledger)
    assert await books.value("SELECT count(*) FROM rollup_queue") == 0
