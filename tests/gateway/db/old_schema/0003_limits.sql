-- Limits: what an organization, a project or a key may use, per calendar window of this server's clock in UTC.
--
-- available = max - settled - leases. `settled` is moved only by the trigger on the ledger, in the transaction that
-- writes the usage, whichever gateway writes it: it is the sum of the ledger's rows and cannot drift from them.

CREATE TABLE limits (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    project_id       text,
    api_key_id       text REFERENCES api_keys (id) ON DELETE CASCADE,
    model            text,
    unit             text NOT NULL CHECK (unit IN ('requests', 'input_tokens', 'output_tokens', 'tokens',
                                                   'cost_nanos', 'concurrency', 'storage_bytes')),
    period           text NOT NULL CHECK (period IN ('minute', 'day', 'month', 'none')),
    max              bigint NOT NULL CHECK (max >= 0),
    hard             boolean NOT NULL,
    alert_percents   integer[] NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id) ON DELETE CASCADE,
    CHECK (api_key_id IS NULL OR project_id IS NOT NULL),
    UNIQUE NULLS NOT DISTINCT (organization_id, project_id, api_key_id, model, unit, period, hard)
);

CREATE TRIGGER limits_changed
    AFTER INSERT OR DELETE OR UPDATE ON limits FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE TABLE limit_accounts (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    settled       bigint NOT NULL,
    PRIMARY KEY (limit_id, window_start)
);

-- Gateways that hold leases. One that is not heard of is first suspected; its leases end only some time after that,
-- so that none ends because this server was away.
CREATE TABLE limit_gateways (
    id            text PRIMARY KEY,
    heard_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    suspected_at  timestamptz
);

CREATE TABLE limit_leases (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    gateway_id    text NOT NULL CONSTRAINT limit_leases_gateway REFERENCES limit_gateways (id) ON DELETE CASCADE,
    amount        bigint NOT NULL CHECK (amount > 0),
    PRIMARY KEY (limit_id, window_start, gateway_id)
);

CREATE INDEX limit_leases_by_gateway ON limit_leases (gateway_id);

-- The price of a request in nanos of the currency; nothing costs anything until prices are set.
CREATE FUNCTION usage_cost_nanos(model text, input_tokens bigint, output_tokens bigint) RETURNS bigint
    LANGUAGE sql STABLE AS $$ SELECT 0::bigint $$;

-- Of several prompts in one request, the first one's row has the request's id and counts as the request.
CREATE FUNCTION usage_amount(unit text, request_id text, model text, input_tokens bigint, output_tokens bigint)
    RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE unit
        WHEN 'requests' THEN CASE WHEN position('.' IN request_id) = 0 THEN 1 ELSE 0 END
        WHEN 'input_tokens' THEN input_tokens
        WHEN 'output_tokens' THEN output_tokens
        WHEN 'tokens' THEN input_tokens + output_tokens
        WHEN 'cost_nanos' THEN usage_cost_nanos(model, input_tokens, output_tokens)
        ELSE 0
    END
$$;

CREATE FUNCTION limit_window(period text, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql STABLE AS $$
    SELECT CASE period WHEN 'none' THEN 'epoch'::timestamptz ELSE date_trunc(period, instant, 'UTC') END
$$;

-- Bytes of adapters that a project, or with NULL the whole organization, keeps; the same content of a project once.
CREATE FUNCTION stored_bytes(the_organization text, the_project text) RETURNS bigint
    LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(size_bytes), 0)::bigint FROM (
        SELECT DISTINCT a.project_id, v.digest, v.size_bytes
        FROM projects p JOIN adapters a ON a.project_id = p.id AND a.removed_at IS NULL
            JOIN adapter_versions v ON v.adapter_id = a.id
        WHERE p.organization_id = the_organization AND (the_project IS NULL OR p.id = the_project)
    ) stored
$$;

-- Alerts are queued here and delivered by whichever gateway comes first.
CREATE TABLE webhooks (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    url              text NOT NULL,
    secret           bytea NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX webhooks_by_organization ON webhooks (organization_id, created_at, id);

CREATE TABLE limit_alerts (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    percent       integer NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (limit_id, window_start, percent)
);

CREATE TABLE webhook_deliveries (
    id            text PRIMARY KEY,
    webhook_id    text NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    body          text NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at  timestamptz,
    last_error    text
);

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE delivered_at IS NULL;

-- Adds amounts to accounts, and queues what crosses a threshold: once per limit, window and threshold.
CREATE FUNCTION settle_account(the_limit limits, the_window timestamptz, used bigint) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    total    bigint;
    crossed  integer;
BEGIN
    INSERT INTO limit_accounts AS a (limit_id, window_start, settled) VALUES (the_limit.id, the_window, used)
        ON CONFLICT (limit_id, window_start) DO UPDATE SET settled = a.settled + excluded.settled
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

-- In the order of the limits' ids, so that no two transactions wait for each other.
CREATE FUNCTION settle_new_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_account(s.the_limit, s.window_start, s.amount) FROM (
        SELECT l AS the_limit, limit_window(l.period, e.created_at) AS window_start,
               sum(usage_amount(l.unit, e.request_id, e.model, e.prompt_tokens, e.completion_tokens))::bigint AS amount
        FROM new_rows e JOIN limits l ON l.organization_id = e.organization_id AND l.period <> 'none'
            AND (l.project_id IS NULL OR l.project_id = e.project_id)
            AND (l.api_key_id IS NULL OR l.api_key_id = e.api_key_id)
            AND (l.model IS NULL OR l.model = e.model)
        GROUP BY l.id, l, window_start ORDER BY l.id, window_start
    ) s WHERE s.amount > 0;
    RETURN NULL;
END
$$;

-- A final count may replace the one of a gateway that lost its engine: the difference is settled.
CREATE FUNCTION settle_changed_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_account(s.the_limit, s.window_start, s.amount) FROM (
        SELECT l AS the_limit, limit_window(l.period, e.created_at) AS window_start,
               sum(usage_amount(l.unit, e.request_id, e.model, e.prompt_tokens, e.completion_tokens)
                   - usage_amount(l.unit, o.request_id, o.model, o.prompt_tokens, o.completion_tokens))::bigint AS amount
        FROM new_rows e JOIN old_rows o USING (request_id, attempt)
            JOIN limits l ON l.organization_id = e.organization_id AND l.period <> 'none'
            AND (l.project_id IS NULL OR l.project_id = e.project_id)
            AND (l.api_key_id IS NULL OR l.api_key_id = e.api_key_id)
            AND (l.model IS NULL OR l.model = e.model)
        GROUP BY l.id, l, window_start ORDER BY l.id, window_start
    ) s WHERE s.amount <> 0;
    RETURN NULL;
END
$$;

CREATE TRIGGER usage_settled
    AFTER INSERT ON usage_events REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION settle_new_usage();

CREATE TRIGGER usage_corrected
    AFTER UPDATE ON usage_events REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION settle_changed_usage();
