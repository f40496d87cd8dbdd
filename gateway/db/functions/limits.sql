-- Returns the start of the calendar window of a period that an instant lies in.
CREATE OR REPLACE FUNCTION limit_window(period text, instant timestamptz) RETURNS timestamptz
    LANGUAGE sql STABLE AS $$
    SELECT CASE period WHEN 'none' THEN 'epoch'::timestamptz ELSE date_trunc(period, instant, 'UTC') END
$$;

-- Returns a sum of money as a bigint. An account stops at the ends of what a bigint holds, where no limit has anything
-- left, so that usage is written even then.
CREATE OR REPLACE FUNCTION saturated(nanos numeric) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(-9223372036854775808, least(9223372036854775807, nanos))::bigint
$$;

-- Returns the amount that a row of the ledger, or a sum of rows, counts in a limit's unit.
CREATE OR REPLACE FUNCTION limited_amount(
    unit text, num_requests bigint, input_tokens bigint, output_tokens bigint, cost numeric
) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE unit
        WHEN 'requests' THEN num_requests
        WHEN 'input_tokens' THEN input_tokens
        WHEN 'output_tokens' THEN output_tokens
        WHEN 'tokens' THEN input_tokens + output_tokens
        WHEN 'cost_nanos' THEN cost
        ELSE 0
    END
$$;

-- Adds an amount to an account, and queues an alert for each threshold that is crossed: one per limit, window and
-- threshold.
CREATE OR REPLACE FUNCTION settle_account(the_limit limits, the_window timestamptz, used numeric) RETURNS void
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
        FROM webhooks w
        WHERE w.organization_id = the_limit.organization_id AND 'limit.threshold_reached' = ANY (w.events);
    END LOOP;
END
$$;

-- Limits count what the ledger stores. Of copies of requests (the tier 'shadow') they count the cost alone: nobody who
-- asks is refused because of a copy that was made of an earlier request, unless money is short. A cost without a window is a prepaid balance (see credit_grants). What a closed
-- month carries over to the balance is not usage, and no window counts it. Accounts are taken in the order of the limits'
-- ids, so that no two transactions wait for each other.
CREATE OR REPLACE FUNCTION settle_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_account(s.the_limit, s.window_start, s.amount) FROM (
        SELECT l AS the_limit, limit_window(l.period, e.created_at) AS window_start,
               sum(limited_amount(l.unit, num_requests(e.kind, e.revision, e.request_id, e.finish_reason),
                                  e.prompt_tokens, e.completion_tokens, e.cost_nanos)) AS amount
        FROM new_rows e JOIN limits l ON l.organization_id = e.organization_id
            AND CASE l.period WHEN 'none' THEN l.unit = 'cost_nanos' ELSE e.finish_reason <> 'carried_over' END
            AND (l.project_id IS NULL OR l.project_id = e.project_id)
            AND (l.api_key_id IS NULL OR l.api_key_id = e.api_key_id)
            AND (l.model IS NULL OR l.model = e.model)
            AND (l.unit = 'cost_nanos' OR e.service_tier <> 'shadow')
        GROUP BY l.id, l, window_start ORDER BY l.id, window_start
    ) s WHERE s.amount <> 0;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER ledger_settled AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION settle_ledger();

-- Takes the lock before the limit is inserted: usage that was written before has committed then, and a transaction that
-- writes usage later finds the limit. The lock also comes before `installation` is changed, so that while it is waited
-- for only the ledger has to wait, and not for long. Runs as the owner of the tables, as hold_ledger does.
CREATE OR REPLACE FUNCTION await_ledger() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    IF NEW.period <> 'none' THEN LOCK TABLE ONLY ledger IN SHARE MODE; END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER limits_await_ledger BEFORE INSERT ON limits FOR EACH ROW EXECUTE FUNCTION await_ledger();

-- A new limit counts what its window has used before; a balance begins at nothing.
--
-- Reads sums, since a month of the ledger would take too long. That is exact: every row is in the roll-ups or in their
-- queue, where the transaction that wrote the row left it; it moves from there in one transaction, and this is one
-- statement, which sees the whole move or nothing of it. Windows begin where buckets of that width do, in UTC as well.
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
        SELECT r.bucket AS instant, r.project_id, r.api_key_id, r.model, r.service_tier, r.num_requests,
               r.prompt_tokens, r.completion_tokens, r.cost_nanos
        FROM usage_rollups r
        WHERE r.organization_id = NEW.organization_id AND r.width = bucket_width AND r.bucket >= since
        UNION ALL
        SELECT q.minute, q.project_id, q.api_key_id, q.model, q.service_tier, q.num_requests, q.prompt_tokens,
               q.completion_tokens, q.cost_nanos
        FROM rollup_queue q WHERE q.organization_id = NEW.organization_id AND q.minute >= since
    ) s
    WHERE (NEW.project_id IS NULL OR s.project_id = NEW.project_id)
        AND (NEW.api_key_id IS NULL OR s.api_key_id = NEW.api_key_id) AND (NEW.model IS NULL OR s.model = NEW.model)
        AND (NEW.unit = 'cost_nanos' OR s.service_tier <> 'shadow')
    GROUP BY 2;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER limits_count_the_past AFTER INSERT ON limits
    FOR EACH ROW EXECUTE FUNCTION settle_past_usage();

CREATE OR REPLACE TRIGGER limits_changed
    AFTER INSERT OR DELETE OR UPDATE ON limits FOR EACH ROW EXECUTE FUNCTION announce_change();
