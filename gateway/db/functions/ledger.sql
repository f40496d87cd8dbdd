-- Rows of the ledger are passed as values of its row type, so that only the table lists the columns.

-- Makes the partition of a day, in UTC, unless it exists. Attaching one holds up nothing but other calls of this
-- function, as creating one in place would. Runs as the owner of the tables, who alone may make one.
CREATE OR REPLACE FUNCTION ensure_ledger_day(day date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    name  text := 'ledger_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
    LOCK TABLE ONLY ledger IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
    EXECUTE format('CREATE TABLE %I (LIKE ledger INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    EXECUTE format('ALTER TABLE ledger ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name,
                   day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    EXECUTE format('CREATE TRIGGER ledger_keeps_rows BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse_change()', name);
END
$$;

-- Lets writers of usage end, and the next ones wait, until the caller's transaction is over. Locks the ledger as a whole
-- alone, as those who write it do. Two such transactions exclude each other, too: one of them may write rows itself. Runs
-- as the owner of the tables: this lock takes the right to change rows, which gateways do not have.
CREATE OR REPLACE FUNCTION hold_ledger() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    LOCK TABLE ONLY ledger IN SHARE ROW EXCLUSIVE MODE;
END
$$;

-- Tells whether a row counts as a request. Of several prompts in one request, the first one's row has the request's id
-- and counts.
CREATE OR REPLACE FUNCTION counts_as_request(kind text, revision integer, request_id text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT kind = 'usage' AND revision = 0 AND position('.' IN request_id) = 0
$$;

-- Returns how many requests a row adds to the sums. An attempt that another one took the place of is no request; where it
-- was counted before that was known, its revision takes it back.
CREATE OR REPLACE FUNCTION num_requests(kind text, revision integer, request_id text, finish_reason text)
    RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN kind <> 'usage' OR position('.' IN request_id) > 0 THEN 0
                WHEN finish_reason = 'superseded' THEN CASE WHEN revision = 0 THEN 0 ELSE -1 END
                WHEN revision = 0 THEN 1 ELSE 0 END
$$;

-- Returns a row with its billing month, price and cost, computed from its counts. With a project's own key it has no price.
CREATE OR REPLACE FUNCTION priced(usage ledger) RETURNS ledger LANGUAGE plpgsql STABLE AS $$
DECLARE
    month  date := month_of(usage.created_at);
    price  record;
    cost   record;
BEGIN
    SELECT * INTO price FROM price_of(usage.organization_id, usage.project_id, usage.model, usage.adapter_class,
                                      usage.service_tier, usage.created_at);
    IF usage.own_key THEN
        price.version := NULL;
        price.input_nanos := 0;
        price.cached_input_nanos := 0;
        price.output_nanos := 0;
    END IF;
    SELECT * INTO cost FROM cost_of(usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens,
                                    usage.completion_tokens, price.input_nanos, price.cached_input_nanos,
                                    price.output_nanos, price.basis_points);
    usage.period := greatest(month, open_from(usage.organization_id));
    usage.corrects_period := CASE WHEN month < usage.period THEN month END;
    usage.price_version := price.version;
    usage.input_cost_nanos := cost.input_cost_nanos;
    usage.cached_cost_nanos := cost.cached_cost_nanos;
    usage.output_cost_nanos := cost.output_cost_nanos;
    usage.cost_nanos := cost.cost_nanos;
    usage.list_cost_nanos := cost.list_cost_nanos;
    usage.written_at := clock_timestamp();
    RETURN usage;
END
$$;

-- Returns the first row of the attempt that a gateway's event tells of.
CREATE OR REPLACE FUNCTION first_row(event ledger) RETURNS ledger LANGUAGE plpgsql STABLE AS $$
BEGIN
    event.revision := 0;
    event.kind := 'usage';
    event.adapter_class := 'none';
    IF event.adapter_id IS NOT NULL THEN
        event.adapter_class := coalesce((SELECT a.price_class FROM adapters a WHERE a.id = event.adapter_id), 'default');
    END IF;
    RETURN priced(event);
END
$$;

-- Returns a row plus (sign 1) or minus (sign -1) the counts and costs of another one.
CREATE OR REPLACE FUNCTION plus_counts(total ledger, other ledger, sign integer) RETURNS ledger
    LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    total.prompt_tokens := total.prompt_tokens + sign * other.prompt_tokens;
    total.cached_tokens := total.cached_tokens + sign * other.cached_tokens;
    total.completion_tokens := total.completion_tokens + sign * other.completion_tokens;
    total.discarded_tokens := total.discarded_tokens + sign * other.discarded_tokens;
    total.queue_ms := total.queue_ms + sign * other.queue_ms;
    total.prefill_ms := total.prefill_ms + sign * other.prefill_ms;
    total.decode_ms := total.decode_ms + sign * other.decode_ms;
    total.adapter_load_bytes := total.adapter_load_bytes + sign * other.adapter_load_bytes;
    total.input_cost_nanos := total.input_cost_nanos + sign * other.input_cost_nanos;
    total.cached_cost_nanos := total.cached_cost_nanos + sign * other.cached_cost_nanos;
    total.output_cost_nanos := total.output_cost_nanos + sign * other.output_cost_nanos;
    total.cost_nanos := total.cost_nanos + sign * other.cost_nanos;
    total.list_cost_nanos := total.list_cost_nanos + sign * other.list_cost_nanos;
    RETURN total;
END
$$;

CREATE OR REPLACE FUNCTION with_revision(total ledger, revised ledger) RETURNS ledger LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    total := plus_counts(total, revised, 1);
    total.revision := revised.revision;
    total.finish_reason := revised.finish_reason;
    RETURN total;
END
$$;

-- Returns what the rows of one attempt, in the order of their revisions, come to: the first row with the sum of all
-- counts and costs, the last revision and the last reason.
CREATE OR REPLACE AGGREGATE whole_attempt(ledger) (SFUNC = with_revision, STYPE = ledger);

-- Returns the next revision of an attempt: the difference between a better count and what is known of the attempt.
CREATE OR REPLACE FUNCTION next_revision(known ledger, better ledger) RETURNS ledger LANGUAGE plpgsql STABLE AS $$
DECLARE
    whole  ledger := known;
BEGIN
    IF better.finish_reason = 'superseded' THEN
        whole.prompt_tokens := 0;
        whole.completion_tokens := 0;
    ELSE
        whole.prompt_tokens := greatest(better.prompt_tokens, known.prompt_tokens);
        whole.completion_tokens := greatest(better.completion_tokens, known.completion_tokens);
    END IF;
    whole.cached_tokens := better.cached_tokens;
    whole.discarded_tokens := better.discarded_tokens;
    whole.queue_ms := better.queue_ms;
    whole.prefill_ms := better.prefill_ms;
    whole.decode_ms := better.decode_ms;
    whole.adapter_load_bytes := better.adapter_load_bytes;
    whole.finish_reason := better.finish_reason;
    whole.ttft_ms := better.ttft_ms;
    whole.latency_ms := better.latency_ms;
    whole.finished_at := better.finished_at;
    whole.revision := known.revision + 1;
    RETURN plus_counts(priced(whole), known, -1);
END
$$;

-- Writes attempts to the ledger, each once, at the prices of its created_at; returns those that had no row yet.
--
-- Of two copies of one attempt, the copy that did not end in 'error' counts, with the larger numbers: a row with 'error'
-- is what a gateway saw before it lost its engine, and the difference to the engine's own count becomes a row beside it.
-- A copy that is 'superseded' counts before all others, and for nothing; each copy at a disowned line of a batch is one.
-- The lock comes first: while it is held, no period is closed, no price set and no limit made, so what is read after it
-- holds when this transaction ends. Only the ledger as a whole is locked, here and everywhere: its partitions are many,
-- and a vacuum of one of them would be in the way.
CREATE OR REPLACE FUNCTION write_usage(events ledger[]) RETURNS TABLE (new_request_id text, new_attempt integer)
    LANGUAGE plpgsql AS $$
DECLARE
    num_new  bigint;
BEGIN
    PERFORM ensure_ledger_day(day) FROM (
        SELECT DISTINCT (e.created_at AT TIME ZONE 'UTC')::date AS day FROM unnest(events) e ORDER BY day
    ) days;
    LOCK TABLE ONLY ledger IN ROW EXCLUSIVE MODE;
    events := with_disowned(events);
    RETURN QUERY
    INSERT INTO ledger SELECT n.* FROM unnest(events) e CROSS JOIN LATERAL first_row(e) n
    ORDER BY n.request_id, n.attempt
    ON CONFLICT DO NOTHING RETURNING request_id, attempt;
    GET DIAGNOSTICS num_new = ROW_COUNT;
    IF num_new < cardinality(events) THEN
        PERFORM correct_usage(events);
    END IF;
END
$$;

-- Takes the lock of each attempt's first row, so that of two better counts the second one sees the first. Reads only the
-- days of the events: a partition that a plan does not leave out is locked with all its indexes. Each call is planned
-- anew, since a plan for any days leaves none out. Runs as the owner of the tables: to lock a row takes the right to
-- change it, which gateways do not have.
CREATE OR REPLACE FUNCTION correct_usage(events ledger[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    first_at  timestamptz;
    last_at   timestamptz;
BEGIN
    SELECT min(e.created_at), max(e.created_at) INTO first_at, last_at FROM unnest(events) e;
    PERFORM FROM ledger l JOIN unnest(events) e
        ON (l.request_id, l.attempt, l.revision, l.created_at) = (e.request_id, e.attempt, 0, e.created_at)
    WHERE l.created_at BETWEEN first_at AND last_at
    ORDER BY l.request_id, l.attempt FOR UPDATE OF l;
    INSERT INTO ledger
    SELECT n.*
    FROM unnest(events) e
        CROSS JOIN LATERAL (
            SELECT whole_attempt(r ORDER BY r.revision) AS known FROM ledger r
            WHERE r.request_id = e.request_id AND r.attempt = e.attempt AND r.created_at = e.created_at
                AND r.created_at BETWEEN first_at AND last_at
        ) k
        CROSS JOIN LATERAL next_revision(k.known, e) n
    WHERE CASE
        WHEN (k.known).finish_reason = 'superseded' THEN false
        WHEN e.finish_reason = 'superseded' THEN true
        ELSE (k.known).finish_reason = 'error'
            AND (e.finish_reason <> 'error' OR e.prompt_tokens > (k.known).prompt_tokens
                 OR e.completion_tokens > (k.known).completion_tokens)
        END
    ORDER BY n.request_id, n.attempt;
END
$$;

-- One row per attempt: what its rows come to, with the reason of its best count. For checks and for people: a filter looks
-- at every attempt.
DROP VIEW IF EXISTS usage_attempts;
CREATE VIEW usage_attempts AS
    SELECT (k.whole).* FROM ledger f CROSS JOIN LATERAL (
        SELECT whole_attempt(r ORDER BY r.revision) AS whole FROM ledger r
        WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
    ) k
    WHERE f.kind = 'usage' AND f.revision = 0;

-- Guards the rows, and so every partition: neither a statement by hand nor a gateway of another version gets past it.
CREATE OR REPLACE FUNCTION guard_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN RAISE EXCEPTION 'the ledger is append-only'; END IF;
    IF NEW.period < open_from(NEW.organization_id) THEN RAISE EXCEPTION 'period % is closed', NEW.period; END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER ledger_guarded BEFORE INSERT OR UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION guard_ledger();
CREATE OR REPLACE TRIGGER ledger_keeps_rows BEFORE TRUNCATE ON ledger EXECUTE FUNCTION refuse_change();

-- Takes out of the sums how attempts had ended that another one took the place of after their end was counted.
-- superseding: the revisions that say so; the revision before each has the end. Reads only their days, as correct_usage.
CREATE OR REPLACE FUNCTION take_back_ends(superseding ledger[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    first_at  timestamptz;
    last_at   timestamptz;
BEGIN
    SELECT min(n.created_at), max(n.created_at) INTO first_at, last_at FROM unnest(superseding) n;
    INSERT INTO rollup_queue (
        minute, period, corrects_period, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_id,
        adapter_version, adapter_class, service_tier, price_version, num_requests, num_stop, num_length, num_cancelled,
        num_errors, num_refused, prompt_tokens, cached_tokens, completion_tokens, input_cost_nanos, cached_cost_nanos,
        output_cost_nanos, cost_nanos, list_cost_nanos, ttft_buckets, tpot_buckets)
    SELECT date_trunc('minute', n.created_at, 'UTC'), n.period, n.corrects_period, n.kind, n.organization_id,
           n.project_id, n.api_key_id, n.endpoint, n.model, n.adapter_id, n.adapter_version, n.adapter_class,
           n.service_tier, n.price_version, 0,
           -count(*) FILTER (WHERE r.finish_reason = 'stop'),
           -count(*) FILTER (WHERE r.finish_reason = 'length'),
           -count(*) FILTER (WHERE r.finish_reason = 'abort'),
           -count(*) FILTER (WHERE r.finish_reason = 'error'),
           -count(*) FILTER (WHERE r.finish_reason = 'refused'),
           0, 0, 0, 0, 0, 0, 0, 0, '{}', '{}'
    FROM unnest(superseding) n JOIN ledger r
        ON (r.request_id, r.attempt, r.revision, r.created_at) = (n.request_id, n.attempt, n.revision - 1, n.created_at)
    WHERE r.created_at BETWEEN first_at AND last_at
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14;
END
$$;

-- Leaves what new rows add to the sums in their queue. A row of a revision above 0 that ends otherwise than in 'error' is
-- of an attempt whose record so far ended in 'error', which it takes back; one that is superseded takes back any end.
-- Adjustments are no requests and end in no way. Nobody waits for copies of requests (the tier 'shadow'): their times are
-- left out.
CREATE OR REPLACE FUNCTION queue_for_rollups() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    superseding  ledger[];
BEGIN
    INSERT INTO rollup_queue (
        minute, period, corrects_period, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_id,
        adapter_version, adapter_class, service_tier, price_version, num_requests, num_stop, num_length, num_cancelled,
        num_errors, num_refused, prompt_tokens, cached_tokens, completion_tokens, input_cost_nanos, cached_cost_nanos,
        output_cost_nanos, cost_nanos, list_cost_nanos, ttft_buckets, tpot_buckets)
    SELECT date_trunc('minute', n.created_at, 'UTC'), n.period, n.corrects_period, n.kind, n.organization_id,
           n.project_id, n.api_key_id, n.endpoint, n.model, n.adapter_id, n.adapter_version, n.adapter_class,
           n.service_tier, n.price_version,
           sum(num_requests(n.kind, n.revision, n.request_id, n.finish_reason)),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'stop'),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'length'),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'abort'),
           count(*) FILTER (WHERE h.is_first AND n.finish_reason = 'error')
               - count(*) FILTER (WHERE h.ended AND NOT h.is_first AND n.finish_reason NOT IN ('error', 'superseded')),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'refused'),
           sum(n.prompt_tokens), sum(n.cached_tokens), sum(n.completion_tokens), sum(n.input_cost_nanos),
           sum(n.cached_cost_nanos), sum(n.output_cost_nanos), sum(n.cost_nanos), sum(n.list_cost_nanos),
           coalesce(array_agg(time_bucket(n.ttft_ms, 1.0))
               FILTER (WHERE h.is_timed AND n.ttft_ms IS NOT NULL), '{}'),
           coalesce(array_agg(time_bucket((n.latency_ms - n.ttft_ms) / (n.completion_tokens - 1), 0.1))
               FILTER (WHERE h.is_timed AND n.latency_ms >= n.ttft_ms AND n.completion_tokens > 1), '{}')
    FROM new_rows n CROSS JOIN LATERAL (
        SELECT counts_as_request(n.kind, n.revision, n.request_id) AS is_first,
               counts_as_request(n.kind, n.revision, n.request_id) AND n.service_tier <> 'shadow' AS is_timed,
               n.kind = 'usage' AND position('.' IN n.request_id) = 0 AS ended
    ) h
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14;
    SELECT array_agg(n::ledger) INTO superseding FROM new_rows n
    WHERE n.kind = 'usage' AND n.revision > 0 AND n.finish_reason = 'superseded' AND position('.' IN n.request_id) = 0;
    IF superseding IS NOT NULL THEN
        PERFORM take_back_ends(superseding);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER ledger_rolled_up AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_for_rollups();

SELECT ensure_ledger_day(current_date + day) FROM generate_series(0, 7) day;
