-- Turns the last schema that numbered migrations built, 0021_thin_traffic, into the schema of schema/*.sql. Runs once, in
-- one transaction; the functions and triggers of functions/*.sql are applied after it, in the same transaction.

-- Both queues are added to the sums: their rows cannot be matched with one another, and one queue takes their place.
WITH taken AS (
    DELETE FROM rollup_queue RETURNING *
), by_time AS (
    INSERT INTO usage_rollups AS r (
        organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier,
        num_requests, prompt_tokens, cached_tokens, completion_tokens,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos)
    SELECT t.organization_id, w.width, date_trunc(w.width, t.minute, 'UTC') AS bucket, t.project_id, t.api_key_id,
           t.model, coalesce(t.adapter_id, '') AS adapter_id, t.endpoint, t.service_tier,
           sum(t.num_requests), sum(t.prompt_tokens), sum(t.cached_tokens), sum(t.completion_tokens),
           sum(t.input_cost_nanos), sum(t.cached_cost_nanos), sum(t.output_cost_nanos), sum(t.cost_nanos)
    FROM taken t CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
    ON CONFLICT (organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier)
    DO UPDATE SET
        num_requests = r.num_requests + excluded.num_requests,
        prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = r.cached_tokens + excluded.cached_tokens,
        completion_tokens = r.completion_tokens + excluded.completion_tokens,
        input_cost_nanos = r.input_cost_nanos + excluded.input_cost_nanos,
        cached_cost_nanos = r.cached_cost_nanos + excluded.cached_cost_nanos,
        output_cost_nanos = r.output_cost_nanos + excluded.output_cost_nanos,
        cost_nanos = r.cost_nanos + excluded.cost_nanos
)
INSERT INTO period_sums AS s (
    organization_id, period, project_id, kind, corrects_period, model, adapter_class, service_tier,
    price_version, num_requests, prompt_tokens, cached_tokens, completion_tokens,
    input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
SELECT t.organization_id, t.period, t.project_id, t.kind, t.corrects_period, t.model, t.adapter_class,
       t.service_tier, coalesce(t.price_version, 0) AS price_version,
       sum(t.num_requests), sum(t.prompt_tokens), sum(t.cached_tokens), sum(t.completion_tokens),
       sum(t.input_cost_nanos), sum(t.cached_cost_nanos), sum(t.output_cost_nanos), sum(t.cost_nanos),
       sum(t.list_cost_nanos)
FROM taken t GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
ON CONFLICT (organization_id, period, project_id, kind, corrects_period, model, adapter_class, service_tier,
             price_version)
DO UPDATE SET
    num_requests = s.num_requests + excluded.num_requests,
    prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
    cached_tokens = s.cached_tokens + excluded.cached_tokens,
    completion_tokens = s.completion_tokens + excluded.completion_tokens,
    input_cost_nanos = s.input_cost_nanos + excluded.input_cost_nanos,
    cached_cost_nanos = s.cached_cost_nanos + excluded.cached_cost_nanos,
    output_cost_nanos = s.output_cost_nanos + excluded.output_cost_nanos,
    cost_nanos = s.cost_nanos + excluded.cost_nanos,
    list_cost_nanos = s.list_cost_nanos + excluded.list_cost_nanos;

WITH taken AS (
    DELETE FROM traffic_queue RETURNING *
), sums AS MATERIALIZED (
    SELECT t.organization_id, l.level, w.width, date_trunc(w.width, t.minute, 'UTC') AS bucket,
           CASE WHEN l.by_project THEN t.project_id ELSE '' END AS project_id,
           CASE WHEN l.by_model THEN t.model ELSE '' END AS model,
           CASE WHEN l.by_model THEN t.adapter_id ELSE '' END AS adapter_id,
           CASE WHEN l.by_model THEN t.adapter_version ELSE 0 END AS adapter_version,
           sum(t.num_requests) AS num_requests, sum(t.num_stop) AS num_stop, sum(t.num_length) AS num_length,
           sum(t.num_cancelled) AS num_cancelled, sum(t.num_errors) AS num_errors,
           sum(t.prompt_tokens) AS prompt_tokens, sum(t.cached_tokens) AS cached_tokens,
           sum(t.completion_tokens) AS completion_tokens, sum(t.cost_nanos) AS cost_nanos,
           all_of(t.ttft_buckets) AS ttft_buckets, all_of(t.tpot_buckets) AS tpot_buckets
    FROM taken t CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width)
        CROSS JOIN (VALUES ('organization', false, false), ('project', true, false), ('model', false, true),
                           ('full', true, true)) AS l (level, by_project, by_model)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
), added AS (
    INSERT INTO traffic_rollups AS r (
        organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
        num_requests, num_stop, num_length, num_cancelled, num_errors, prompt_tokens, cached_tokens,
        completion_tokens, cost_nanos)
    SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
           num_requests, num_stop, num_length, num_cancelled, num_errors, prompt_tokens, cached_tokens,
           completion_tokens, cost_nanos
    FROM sums
    ON CONFLICT (organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version)
    DO UPDATE SET
        num_requests = r.num_requests + excluded.num_requests,
        num_stop = r.num_stop + excluded.num_stop,
        num_length = r.num_length + excluded.num_length,
        num_cancelled = r.num_cancelled + excluded.num_cancelled,
        num_errors = r.num_errors + excluded.num_errors,
        prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = r.cached_tokens + excluded.cached_tokens,
        completion_tokens = r.completion_tokens + excluded.completion_tokens,
        cost_nanos = r.cost_nanos + excluded.cost_nanos
)
INSERT INTO traffic_times AS r (
    organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version, ttft_counts, tpot_counts)
SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
       time_counts(ttft_buckets), time_counts(tpot_buckets)
FROM sums WHERE ttft_buckets <> '{}' OR tpot_buckets <> '{}'
ON CONFLICT (organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version)
DO UPDATE SET
    ttft_counts = added_counts(r.ttft_counts, excluded.ttft_counts),
    tpot_counts = added_counts(r.tpot_counts, excluded.tpot_counts);

DROP TRIGGER ledger_traffic ON ledger;
DROP FUNCTION queue_for_traffic();
DROP TABLE traffic_queue;
ALTER TABLE rollup_queue
    ADD COLUMN adapter_version  integer,
    ADD COLUMN num_stop         bigint NOT NULL,
    ADD COLUMN num_length       bigint NOT NULL,
    ADD COLUMN num_cancelled    bigint NOT NULL,
    ADD COLUMN num_errors       bigint NOT NULL,
    ADD COLUMN ttft_buckets     smallint[] NOT NULL,
    ADD COLUMN tpot_buckets     smallint[] NOT NULL;

-- The table usage_events was empty: its trigger passed each row on to the ledger. Its row type goes with it.
DROP VIEW usage_attempts;
DROP FUNCTION write_usage(usage_events[]);
DROP FUNCTION correct_usage(usage_events[]);
DROP TABLE usage_events;
DROP FUNCTION pass_to_ledger();
DROP FUNCTION usage_amount(text, text, text, bigint, bigint);
DROP FUNCTION usage_cost_nanos(text, bigint, bigint);

-- Triggers that nobody needs any more, and trigger functions that others replace.
DROP TRIGGER limit_accounts_keep_balances ON limit_accounts;
DROP FUNCTION keep_balance();
DROP TRIGGER billing_periods_keep_customers ON billing_periods;
DROP FUNCTION keep_period_customers();
DROP TRIGGER price_versions_withdrawn ON price_versions;
DROP FUNCTION announce_withdrawn_prices();
DROP TRIGGER price_versions_changed ON price_versions;
DROP TRIGGER projects_changed ON projects;
DROP TRIGGER organizations_changed ON organizations;
DROP TRIGGER users_changed ON users;
DROP FUNCTION announce_tenancy_change();

ALTER TABLE adapter_versions ALTER COLUMN state DROP DEFAULT, ALTER COLUMN source DROP DEFAULT;

-- The base of the adapters is not known here: the first gateway that starts adopts them.
CREATE TABLE bases (
    digest      text PRIMARY KEY CHECK (digest ~ '^[0-9a-f]{64}$'),
    name        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE adapters ADD COLUMN base_digest text REFERENCES bases (digest);
ALTER TABLE adapter_imports ADD COLUMN base_digest text REFERENCES bases (digest);
