-- Sums of money may exceed a bigint: in a weak currency that is half a million dollars. All of them are whole numbers.
ALTER TABLE rollup_queue
    ALTER COLUMN input_cost_nanos TYPE numeric, ALTER COLUMN cached_cost_nanos TYPE numeric,
    ALTER COLUMN output_cost_nanos TYPE numeric, ALTER COLUMN cost_nanos TYPE numeric,
    ALTER COLUMN list_cost_nanos TYPE numeric;
ALTER TABLE usage_rollups
    ALTER COLUMN input_cost_nanos TYPE numeric, ALTER COLUMN cached_cost_nanos TYPE numeric,
    ALTER COLUMN output_cost_nanos TYPE numeric, ALTER COLUMN cost_nanos TYPE numeric;
ALTER TABLE period_sums
    ALTER COLUMN input_cost_nanos TYPE numeric, ALTER COLUMN cached_cost_nanos TYPE numeric,
    ALTER COLUMN output_cost_nanos TYPE numeric, ALTER COLUMN cost_nanos TYPE numeric,
    ALTER COLUMN list_cost_nanos TYPE numeric;

-- An account stands still at the end of what a bigint holds, where no limit has anything left: usage is written even so.
CREATE FUNCTION saturated(nanos numeric) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(-9223372036854775808, least(9223372036854775807, nanos))::bigint
$$;

DROP FUNCTION limited_amount(text, bigint, bigint, bigint, bigint);
CREATE FUNCTION limited_amount(unit text, num_requests bigint, input_tokens bigint, output_tokens bigint, cost numeric)
    RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE unit
        WHEN 'requests' THEN num_requests
        WHEN 'input_tokens' THEN input_tokens
        WHEN 'output_tokens' THEN output_tokens
        WHEN 'tokens' THEN input_tokens + output_tokens
        WHEN 'cost_nanos' THEN cost
        ELSE 0
    END
$$;

DROP FUNCTION settle_account(limits, timestamptz, bigint);
CREATE FUNCTION settle_account(the_limit limits, the_window timestamptz, used numeric) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    total    bigint;
    crossed  integer;
BEGIN
    INSERT INTO limit_accounts AS a (limit_id, window_start, settled) VALUES (the_limit.id, the_window, saturated(used))
        ON CONFLICT (limit_id, window_start) DO UPDATE SET settled = saturated(a.settled + used)
        RETURNING settled INTO total;
    FOREACH crossed IN ARRAY the_limit.alert_percents LOOP
        CONTINUE WHEN total::numeric * 100 < the_limit.max::numeric * crossed;
        INSERT INTO limit_alerts (limit_id, window_start, percent) VALUES (the_limit.id, the_window, crossed)
            ON CONFLICT DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        INSERT INTO webhook_deliveries (id, webhook_id, body)
        SELECT 'msg_' || replace(gen_random_uuid()::text, '-', ''), w.id, json_build_object(
            'type', 'limit.threshold_reached',
            'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
            'data', json_build_object(
                'limit_id', the_limit.id, 'project_id', the_limit.project_id, 'api_key_id', the_limit.api_key_id,
                'model', the_limit.model, 'unit', the_limit.unit, 'window', the_limit.period,
                'window_start', extract(epoch FROM the_window)::bigint,
                'max', the_limit.max, 'hard', the_limit.hard, 'percent', crossed, 'used', total))::text
        FROM webhooks w WHERE w.organization_id = the_limit.organization_id;
    END LOOP;
END
$$;

-- Limits count what the ledger stores. A cost without a window is a prepaid balance; see credit_grants. What a closed
-- month hands on to the balance is nobody's usage: no window counts it.
CREATE OR REPLACE FUNCTION settle_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_account(s.the_limit, s.window_start, s.amount) FROM (
        SELECT l AS the_limit, limit_window(l.period, e.created_at) AS window_start,
               sum(limited_amount(l.unit, counts_as_request(e.kind, e.revision, e.request_id)::integer,
                                  e.prompt_tokens, e.completion_tokens, e.cost_nanos)) AS amount
        FROM new_rows e JOIN limits l ON l.organization_id = e.organization_id
            AND CASE l.period WHEN 'none' THEN l.unit = 'cost_nanos' ELSE e.finish_reason <> 'carried_over' END
            AND (l.project_id IS NULL OR l.project_id = e.project_id)
            AND (l.api_key_id IS NULL OR l.api_key_id = e.api_key_id)
            AND (l.model IS NULL OR l.model = e.model)
        GROUP BY l.id, l, window_start ORDER BY l.id, window_start
    ) s WHERE s.amount <> 0;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION settle_past_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    since        timestamptz := limit_window(NEW.period, now());
    bucket_width text := CASE NEW.period WHEN 'minute' THEN 'minute' ELSE 'day' END;
BEGIN
    IF NEW.period = 'none' THEN RETURN NULL; END IF;
    INSERT INTO limit_accounts (limit_id, window_start, settled)
    SELECT NEW.id, limit_window(NEW.period, s.instant),
           saturated(sum(limited_amount(NEW.unit, s.num_requests, s.prompt_tokens, s.completion_tokens, s.cost_nanos)))
    FROM (
        SELECT r.bucket AS instant, r.project_id, r.api_key_id, r.model, r.num_requests, r.prompt_tokens,
               r.completion_tokens, r.cost_nanos
        FROM usage_rollups r
        WHERE r.organization_id = NEW.organization_id AND r.width = bucket_width AND r.bucket >= since
        UNION ALL
        SELECT q.minute, q.project_id, q.api_key_id, q.model, q.num_requests, q.prompt_tokens, q.completion_tokens,
               q.cost_nanos
        FROM rollup_queue q WHERE q.organization_id = NEW.organization_id AND q.minute >= since
    ) s
    WHERE (NEW.project_id IS NULL OR s.project_id = NEW.project_id)
        AND (NEW.api_key_id IS NULL OR s.api_key_id = NEW.api_key_id) AND (NEW.model IS NULL OR s.model = NEW.model)
    GROUP BY 2;
    RETURN NULL;
END
$$;

-- What open periods cost: of a project, or with NULL of every one. Every row of the ledger is in the sums or in their
-- queue, and a statement sees it in one of the two.
CREATE FUNCTION open_costs(the_organization text, the_project text)
    RETURNS TABLE (project_id text, cost_nanos numeric) LANGUAGE sql STABLE AS $$
    SELECT s.project_id, sum(s.cost_nanos) FROM (
        SELECT p.project_id, p.cost_nanos FROM period_sums p
        WHERE p.organization_id = the_organization AND p.period >= open_from(the_organization)
        UNION ALL
        SELECT q.project_id, q.cost_nanos FROM rollup_queue q
        WHERE q.organization_id = the_organization AND q.period >= open_from(the_organization)
    ) s
    WHERE the_project IS NULL OR s.project_id = the_project
    GROUP BY s.project_id
$$;

-- Prepaid or not; negative for who owes.
CREATE FUNCTION balances(the_organization text, the_project text)
    RETURNS TABLE (project_id text, nanos numeric) LANGUAGE sql STABLE AS $$
    SELECT s.project_id, sum(s.nanos) FROM (
        SELECT g.project_id, g.amount_nanos - coalesce(g.lapsed_nanos, 0) AS nanos FROM credit_grants g
        WHERE g.organization_id = the_organization
        UNION ALL
        SELECT g.project_id, -d.amount_nanos FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
        WHERE g.organization_id = the_organization
        UNION ALL
        SELECT o.project_id, -o.cost_nanos FROM open_costs(the_organization, the_project) o
    ) s
    WHERE the_project IS NULL OR s.project_id = the_project
    GROUP BY s.project_id
$$;

-- As before, and of the days alone that the events are of: a partition that a plan does not leave out is locked with all
-- its indexes, and there is one for each day. Planned anew each time, since a plan for any days leaves none out.
CREATE OR REPLACE FUNCTION correct_usage(events usage_events[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    first_at  timestamptz;
    last_at   timestamptz;
BEGIN
    SELECT min(e.created_at), max(e.created_at) INTO first_at, last_at FROM unnest(events) e;
    PERFORM FROM ledger l JOIN unnest(events) e
        ON (l.request_id, l.attempt, l.revision, l.created_at) = (e.request_id, e.attempt, 0, e.created_at)
    WHERE l.created_at BETWEEN first_at AND last_at
    ORDER BY l.request_id, l.attempt FOR UPDATE OF l;
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at,
        period, corrects_period, price_version,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT f.request_id, f.attempt, k.revision + 1, 'usage', f.organization_id, f.project_id, f.api_key_id,
           f.endpoint, f.model, f.adapter_id, f.adapter_version, f.adapter_digest, f.adapter_class, f.service_tier,
           f.stream, t.prompt - k.prompt, t.cached - k.cached, t.completion - k.completion,
           e.discarded_tokens - k.discarded, e.finish_reason, e.queue_ms - k.queue, e.prefill_ms - k.prefill,
           e.decode_ms - k.decode, e.ttft_ms, e.latency_ms, e.adapter_load_bytes - k.loaded, f.created_at,
           e.finished_at, greatest(m.month, m.open), CASE WHEN m.month < m.open THEN m.month END, p.version,
           n.input_cost_nanos - k.input_cost, n.cached_cost_nanos - k.cached_cost, n.output_cost_nanos - k.output_cost,
           n.cost_nanos - k.cost, n.list_cost_nanos - k.list_cost
    FROM unnest(events) e
        JOIN ledger f ON (f.request_id, f.attempt, f.revision, f.created_at) = (e.request_id, e.attempt, 0, e.created_at)
        CROSS JOIN LATERAL (
            SELECT max(r.revision) AS revision, (array_agg(r.finish_reason ORDER BY r.revision DESC))[1] AS finish_reason,
                   sum(r.prompt_tokens)::bigint AS prompt, sum(r.cached_tokens)::bigint AS cached,
                   sum(r.completion_tokens)::bigint AS completion, sum(r.discarded_tokens)::bigint AS discarded,
                   sum(r.queue_ms) AS queue, sum(r.prefill_ms) AS prefill, sum(r.decode_ms) AS decode,
                   sum(r.adapter_load_bytes)::bigint AS loaded, sum(r.input_cost_nanos)::bigint AS input_cost,
                   sum(r.cached_cost_nanos)::bigint AS cached_cost, sum(r.output_cost_nanos)::bigint AS output_cost,
                   sum(r.cost_nanos)::bigint AS cost, sum(r.list_cost_nanos)::bigint AS list_cost
            FROM ledger r
            WHERE r.request_id = e.request_id AND r.attempt = e.attempt AND r.created_at = e.created_at
                AND r.created_at BETWEEN first_at AND last_at
        ) k
        CROSS JOIN LATERAL (
            SELECT greatest(e.prompt_tokens, k.prompt) AS prompt, e.cached_tokens AS cached,
                   greatest(e.completion_tokens, k.completion) AS completion
        ) t
        CROSS JOIN LATERAL (SELECT month_of(f.created_at) AS month, open_from(f.organization_id) AS open) m
        CROSS JOIN LATERAL price_of(f.organization_id, f.project_id, f.model, f.adapter_class, f.service_tier,
                                    f.created_at) p
        CROSS JOIN LATERAL cost_of(t.prompt - t.cached, t.cached, t.completion, p.input_nanos, p.cached_input_nanos,
                                   p.output_nanos, p.basis_points) n
    WHERE f.created_at BETWEEN first_at AND last_at AND k.finish_reason = 'error'
        AND (e.finish_reason <> 'error' OR e.prompt_tokens > k.prompt OR e.completion_tokens > k.completion)
    ORDER BY f.request_id, f.attempt;
END
$$;
