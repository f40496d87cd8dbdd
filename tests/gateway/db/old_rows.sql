-- Rows in every table of the old schema, usage written through its own functions. Two organizations with two projects
-- each; a closed month with invoices; one batch of usage in the sums, a later one in the queues.

INSERT INTO organizations (id, name) VALUES ('org_1', 'default'), ('org_2', 'other');
UPDATE organizations SET suspended_at = now() WHERE id = 'org_2';
INSERT INTO projects (id, organization_id, name, store_days, log_content_days) VALUES
    ('proj_1', 'org_1', 'acme', 30, 7), ('proj_2', 'org_1', 'globex', 0, 0), ('proj_3', 'org_2', 'acme', 0, 0);
INSERT INTO projects (id, organization_id, name, archived_at, archived_name, purge_after)
    VALUES ('proj_4', 'org_2', 'proj_4', now(), 'gone', now() + interval '1 day');
INSERT INTO users (id, organization_id, email, name, role) VALUES ('user_1', 'org_1', 'a@example.com', 'A', 'owner');
INSERT INTO users (id, organization_id, email, name) VALUES ('user_2', 'org_1', 'b@example.com', 'B');
INSERT INTO project_members (organization_id, project_id, user_id, role)
    VALUES ('org_1', 'proj_1', 'user_2', 'viewer');
INSERT INTO service_accounts (id, project_id, name) VALUES ('sa_1', 'proj_1', 'bot');
INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes, models, ip_allow,
                      owner_service_account_id)
    VALUES ('key_1', 'project', 'org_1', 'proj_1', 'k', 'sk-lk-1', sha256('1'), '{inference}', '{base}',
            '{10.0.0.0/8}', 'sa_1');
INSERT INTO api_keys (id, kind, organization_id, name, public, sha256, scopes, previous_sha256, previous_expires_at)
    VALUES ('key_2', 'admin', 'org_1', 'operator', 'sk-lk-admin-1', sha256('2'), '{admin_read}', sha256('3'), now());
INSERT INTO logins (id, user_id, token_sha256, expires_at, address, user_agent)
    VALUES ('login_1', 'user_1', sha256('4'), now() + interval '1 day', '127.0.0.1', 'browser');
INSERT INTO login_failures VALUES (sha256('c@example.com'), 3, now(), now() + interval '1 minute');

-- Adapters in every state, in the order of their lives.
INSERT INTO adapters (id, project_id, name, price_class, defaults, pinned) VALUES
    ('adpt_1', 'proj_1', 'pirate', 'premium', '{"temperature": 0.5}', true), ('adpt_2', 'proj_2', 'poet', 'default', '{}', false);
INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, state, report, promotion)
SELECT 'adpt_1', n, encode(sha256(n::text::bytea), 'hex'), 8, 1000 * n, 'inspected', '{"rank": 8}', n
FROM generate_series(1, 5) n;
UPDATE adapter_versions SET state = 'rejected', reason = 'not finite' WHERE version = 5;
UPDATE adapter_versions SET state = 'probed', probe = '{"ms": 3}' WHERE version < 4;
UPDATE adapter_versions SET state = 'ready' WHERE version < 4;
INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes) VALUES ('adpt_2', 1, repeat('b', 64), 4, 5);
UPDATE adapters SET current_version = 1;
UPDATE adapters SET current_version = 3 WHERE id = 'adpt_1';
UPDATE adapter_versions SET state = 'retired' WHERE version = 1 AND adapter_id = 'adpt_1';
INSERT INTO adapters (id, project_id, name, removed_at) VALUES ('adpt_3', 'proj_1', 'removed', now());
INSERT INTO adapter_imports (id, project_id, name, source, state, promote, author, adapter_id, version, inspection)
    VALUES ('imp_1', 'proj_1', 'pirate', 'upload', 'done', true, '{"id": "user_1"}', 'adpt_1', 3, 'passed'),
           ('imp_2', 'proj_1', 'pirate', 'hf://a/b', 'fetching', true, '{"id": "user_1"}', NULL, NULL, NULL);
INSERT INTO model_aliases (id, project_id, name, target_kind, adapter_id, version)
    VALUES ('alias_1', 'proj_1', 'stable', 'version', 'adpt_1', 2);
INSERT INTO adapter_shares (id, adapter_id, project_id, name) VALUES ('share_1', 'adpt_1', 'proj_2', 'pirate');
INSERT INTO watched_adapters (project_id, name, fingerprint) VALUES ('proj_1', 'pirate', 'f');
INSERT INTO watched_tenants (folder, project_id) VALUES ('acme', 'proj_1');

INSERT INTO webhooks (id, organization_id, url, secret) VALUES ('wh_1', 'org_1', 'https://example.com/', 'secret');
INSERT INTO limits (id, organization_id, project_id, api_key_id, model, unit, period, max, hard, alert_percents) VALUES
    ('lim_1', 'org_1', 'proj_1', NULL, NULL, 'tokens', 'month', 1000000000, true, '{}'),
    ('lim_2', 'org_1', 'proj_1', 'key_1', 'base', 'requests', 'day', 10, true, '{50,100}'),
    ('lim_3', 'org_1', 'proj_2', NULL, NULL, 'cost_nanos', 'none', 5000000, true, '{}');
INSERT INTO limit_gateways (id) VALUES ('gw_1');
INSERT INTO limit_leases (limit_id, window_start, gateway_id, amount) VALUES ('lim_1', date_trunc('month', now()), 'gw_1', 9);

INSERT INTO price_versions (id, organization_id, version, currency, effective_at)
    VALUES ('price_1', 'org_1', 1, 'eur', '2020-01-01'), ('price_2', 'org_1', 2, 'eur', now() + interval '1 year');
INSERT INTO prices VALUES ('org_1', 1, '*', '*', '*', 100000001, 50000003, 400000007),
                          ('org_1', 2, 'base', 'premium', '*', 200000000, 50000000, 800000000);
INSERT INTO price_discounts VALUES ('org_1', 1, 'proj_2', 1250);
INSERT INTO stripe_customers VALUES ('org_1', 'proj_1', 'cus_1');

-- Both batches have rows of last month and of this minute; some failed, and a better count of one came later.
CREATE FUNCTION write_batch(prefix text, num integer, again boolean) RETURNS void LANGUAGE sql AS $$
    SELECT count(*) FROM write_usage(ARRAY(
        SELECT jsonb_populate_record(NULL::usage_events, jsonb_build_object(
            'request_id', prefix || n || CASE WHEN n % 10 = 4 THEN '.1' ELSE '' END, 'attempt', 0,
            'organization_id', 'org_1', 'project_id', 'proj_' || 1 + n % 2, 'api_key_id', 'key_1',
            'endpoint', '/v1/completions', 'model', CASE n % 3 WHEN 0 THEN 'base' ELSE 'base:pirate' END,
            'adapter_id', CASE n % 3 WHEN 0 THEN NULL ELSE 'adpt_1' END,
            'adapter_version', CASE n % 3 WHEN 0 THEN NULL ELSE n % 3 END,
            'adapter_digest', CASE n % 3 WHEN 0 THEN NULL ELSE repeat('a', 64) END,
            'stream', true, 'prompt_tokens', 10 + n, 'cached_tokens', n % 7, 'completion_tokens', 2 * n + again::integer,
            'discarded_tokens', n % 2,
            'finish_reason', CASE WHEN n % 8 = 3 AND NOT again THEN 'error' WHEN n % 5 = 0 THEN 'length'
                             WHEN n % 7 = 0 THEN 'abort' ELSE 'stop' END,
            'queue_ms', 1, 'prefill_ms', n, 'decode_ms', 2 * n, 'ttft_ms', n + 1,
            'latency_ms', 30 * n, 'adapter_load_bytes', 0, 'service_tier', 'default',
            'created_at', date_trunc('month', now()) - CASE WHEN n % 4 = 0 THEN interval '3 days' ELSE '0 days' END,
            'finished_at', now()))
        FROM generate_series(1, num) n))
$$;
SELECT write_batch('req_a', 60, false);
SELECT write_batch('req_a', 60, true);

INSERT INTO usage_rollups
SELECT q.organization_id, w.width, date_trunc(w.width, q.minute, 'UTC'), q.project_id, q.api_key_id, q.model,
       coalesce(q.adapter_id, ''), q.endpoint, q.service_tier, sum(q.num_requests), sum(q.prompt_tokens),
       sum(q.cached_tokens), sum(q.completion_tokens), sum(q.input_cost_nanos), sum(q.cached_cost_nanos),
       sum(q.output_cost_nanos), sum(q.cost_nanos)
FROM rollup_queue q CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;
INSERT INTO period_sums
SELECT q.organization_id, q.period, q.project_id, q.kind, q.corrects_period, q.model, q.adapter_class, q.service_tier,
       coalesce(q.price_version, 0), sum(q.num_requests), sum(q.prompt_tokens), sum(q.cached_tokens),
       sum(q.completion_tokens), sum(q.input_cost_nanos), sum(q.cached_cost_nanos), sum(q.output_cost_nanos),
       sum(q.cost_nanos), sum(q.list_cost_nanos)
FROM rollup_queue q GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;
INSERT INTO traffic_rollups
SELECT q.organization_id, 'full', w.width, date_trunc(w.width, q.minute, 'UTC'), q.project_id, q.model, q.adapter_id,
       q.adapter_version, sum(q.num_requests), sum(q.num_stop), sum(q.num_length), sum(q.num_cancelled),
       sum(q.num_errors), sum(q.prompt_tokens), sum(q.cached_tokens), sum(q.completion_tokens), sum(q.cost_nanos)
FROM traffic_queue q CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;
INSERT INTO traffic_times
SELECT q.organization_id, 'full', w.width, date_trunc(w.width, q.minute, 'UTC'), q.project_id, q.model, q.adapter_id,
       q.adapter_version, time_counts(all_of(q.ttft_buckets)), time_counts(all_of(q.tpot_buckets))
FROM traffic_queue q CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;
INSERT INTO traffic_rollups
SELECT r.organization_id, l.level, r.width, r.bucket, CASE WHEN l.level = 'project' THEN r.project_id ELSE '' END,
       CASE WHEN l.level = 'model' THEN r.model ELSE '' END, CASE WHEN l.level = 'model' THEN r.adapter_id ELSE '' END,
       CASE WHEN l.level = 'model' THEN r.adapter_version ELSE 0 END, sum(r.num_requests), sum(r.num_stop),
       sum(r.num_length), sum(r.num_cancelled), sum(r.num_errors), sum(r.prompt_tokens), sum(r.cached_tokens),
       sum(r.completion_tokens), sum(r.cost_nanos)
FROM traffic_rollups r CROSS JOIN (VALUES ('organization'), ('project'), ('model')) AS l (level)
WHERE r.level = 'full' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;
DELETE FROM rollup_queue;
DELETE FROM traffic_queue;

INSERT INTO credit_grants (id, organization_id, project_id, amount_nanos, reason)
    VALUES ('grant_1', 'org_1', 'proj_1', 1000, 'welcome');
INSERT INTO billing_periods (organization_id, start) VALUES ('org_1', date_trunc('month', now()) - interval '1 month');
INSERT INTO credit_draws SELECT 'grant_1', start, 700 FROM billing_periods;
INSERT INTO invoices (number, organization_id, project_id, period, document)
SELECT 'INV-1', 'org_1', 'proj_1', start, '{"total": 700}' FROM billing_periods;
INSERT INTO deliveries (id, organization_id, name, kind, format, schedule, destination, from_period)
    VALUES ('del_1', 'org_1', 'nightly', 'usage', 'jsonl', 'daily', '{"folder": "x"}', '2026-01-01');
INSERT INTO delivery_runs (delivery_id, period) VALUES ('del_1', '2026-01-01');

-- What comes late for the closed month, what corrects the first batch's failures, and an adjustment.
SELECT write_batch('req_b', 40, false);
SELECT write_batch('req_b', 40, true);
DROP FUNCTION write_batch(text, integer, boolean);
INSERT INTO ledger (
    request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,
    service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
    queue_ms, prefill_ms, decode_ms, adapter_load_bytes, created_at, finished_at, period, reason,
    input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
SELECT 'adj_1', 0, 0, 'adjustment', 'org_1', 'proj_1', '', '', '', 'none', 'default', false, 0, 0, 0, 0, '', 0, 0, 0, 0,
       now(), now(), date_trunc('month', now()), 'support', 0, 0, 0, -12345, -12345;

INSERT INTO journals (id, open_requests, version) VALUES ('journal_1', 3, '0.1.0');
INSERT INTO engine_usage (engine_id, journal_id, prompt_tokens, completion_tokens)
    VALUES ('engine_1', 'journal_1', 10, 20);
INSERT INTO content_keys (id) VALUES ('ck_1');
INSERT INTO idempotency_keys (project_id, key_sha256, fingerprint, request_id, state, alive_until, expires_at)
    VALUES ('proj_1', sha256('i'), 'f', 'req_a1', 'kept', now(), now() + interval '1 day');
INSERT INTO kept_replies (project_id, key_sha256, content_key, sealed) VALUES ('proj_1', sha256('i'), 'ck_1', 'sealed');
INSERT INTO stored_chats (project_id, id, model, tags, content_key, sealed_metadata, sealed_messages, sealed_reply)
    VALUES ('proj_1', 'chatcmpl_1', 'base', '{t}', 'ck_1', 'a', 'b', 'c');
INSERT INTO request_contents (project_id, request_id, expires_at, content_key, sealed)
    VALUES ('proj_1', 'req_a1', now() + interval '7 days', 'ck_1', 'sealed');
INSERT INTO refusals (organization_id, project_id, api_key_id, minute, kind, request_ids, endpoint, model, status, code,
                      type, param, message, num)
    VALUES ('org_1', 'proj_1', 'key_1', date_trunc('minute', now()), 'k', '{req_x}', '/v1/completions', 'base', 429,
            'rate_limit_exceeded', 'requests', '', 'Too many requests.', 2);
