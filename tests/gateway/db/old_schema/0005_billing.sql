-- Billing: the ledger by days, priced where it is written; prices, billing periods, invoices, credits and roll-ups.
--
-- Gateways of the version before go on inserting into usage_events, which keeps its name, columns and primary key but
-- holds no rows any more: it is a door, whose trigger passes each row on to the ledger. A partitioned table could not
-- take its place: their ON CONFLICT (request_id, attempt) needs a unique index without the day in it.

-- The price book: versions, each complete and never changed, in force from effective_at until the next one is.
CREATE TABLE price_versions (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id),
    version          integer NOT NULL CHECK (version >= 1),
    currency         text NOT NULL CHECK (currency ~ '^[a-z]{3}$'),
    effective_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (organization_id, version),
    UNIQUE (organization_id, effective_at)
);

-- Nanos of the currency per million tokens. '*' matches all; model may be a model's id or its base's. No batch column:
-- batch is a service tier.
CREATE TABLE prices (
    organization_id     text NOT NULL,
    version             integer NOT NULL,
    model               text NOT NULL,
    adapter_class       text NOT NULL,
    service_tier        text NOT NULL,
    input_nanos         bigint NOT NULL CHECK (input_nanos BETWEEN 0 AND 1000000000000000),
    cached_input_nanos  bigint NOT NULL CHECK (cached_input_nanos BETWEEN 0 AND input_nanos),
    output_nanos        bigint NOT NULL CHECK (output_nanos BETWEEN 0 AND 1000000000000000),
    PRIMARY KEY (organization_id, version, model, adapter_class, service_tier),
    FOREIGN KEY (organization_id, version) REFERENCES price_versions (organization_id, version)
);

CREATE TABLE price_discounts (
    organization_id  text NOT NULL,
    version          integer NOT NULL,
    project_id       text NOT NULL,
    basis_points     integer NOT NULL CHECK (basis_points BETWEEN 1 AND 10000),
    PRIMARY KEY (organization_id, version, project_id),
    FOREIGN KEY (organization_id, version) REFERENCES price_versions (organization_id, version)
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END
$$;

CREATE TRIGGER price_versions_stay BEFORE UPDATE OR DELETE ON price_versions
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER prices_stay BEFORE UPDATE OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER price_discounts_stay BEFORE UPDATE OR DELETE ON price_discounts
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TRIGGER price_versions_changed
    AFTER INSERT ON price_versions FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();

-- What the price book calls an adapter; rows without one are of the class 'none'.
ALTER TABLE adapters ADD COLUMN price_class text NOT NULL DEFAULT 'default' CHECK (price_class NOT IN ('', '*', 'none'));

-- Months that are closed; those that follow the last of them are open.
CREATE TABLE billing_periods (
    organization_id  text NOT NULL REFERENCES organizations (id),
    start            date NOT NULL CHECK (extract(day FROM start) = 1),
    closed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    invoiced_at      timestamptz,
    PRIMARY KEY (organization_id, start)
);

-- The first month that is open; '-infinity' before any was closed.
CREATE FUNCTION open_from(the_organization text) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT coalesce((max(start) + interval '1 month')::date, '-infinity'::date) FROM billing_periods
    WHERE organization_id = the_organization
$$;

CREATE FUNCTION month_of(instant timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date_trunc('month', instant AT TIME ZONE 'UTC')::date
$$;

-- Append only. Revision 0 is an attempt's own row; a later one is the difference to a better count that came late.
-- created_at is in the meter tag, which travels with the attempt unchanged, so every copy of it has the same key.
--
-- period: the month in which the row is billed. It is that of created_at, or the first open one where that was closed
-- before the row came: then corrects_period is that of created_at. An adjustment is an operator's: cost without tokens,
-- with its reason, and what it corrects, where it corrects something.
--
-- cost_nanos = input_cost_nanos + cached_cost_nanos + output_cost_nanos, but for adjustments, which have only the sum.
-- list_cost_nanos: without the discount. price_version NULL: there were no prices.
CREATE TABLE ledger (
    request_id           text NOT NULL,
    attempt              integer NOT NULL,
    revision             integer NOT NULL,
    kind                 text NOT NULL CHECK (kind IN ('usage', 'adjustment')),
    organization_id      text NOT NULL,
    project_id           text NOT NULL,
    api_key_id           text NOT NULL,
    endpoint             text NOT NULL,
    model                text NOT NULL,
    adapter_id           text,
    adapter_version      integer,
    adapter_digest       text,
    adapter_class        text NOT NULL,
    service_tier         text NOT NULL,
    stream               boolean NOT NULL,
    prompt_tokens        bigint NOT NULL CHECK (prompt_tokens >= 0 OR revision > 0),
    cached_tokens        bigint NOT NULL CHECK (cached_tokens >= 0 OR revision > 0),
    completion_tokens    bigint NOT NULL CHECK (completion_tokens >= 0 OR revision > 0),
    discarded_tokens     bigint NOT NULL CHECK (discarded_tokens >= 0 OR revision > 0),
    finish_reason        text NOT NULL,
    queue_ms             double precision NOT NULL,
    prefill_ms           double precision NOT NULL,
    decode_ms            double precision NOT NULL,
    ttft_ms              double precision,
    latency_ms           double precision,
    adapter_load_bytes   bigint NOT NULL,
    created_at           timestamptz NOT NULL,
    finished_at          timestamptz NOT NULL,
    period               date NOT NULL,
    corrects_period      date,
    corrects_request_id  text,
    reason               text,
    price_version        integer,
    input_cost_nanos     bigint NOT NULL,
    cached_cost_nanos    bigint NOT NULL,
    output_cost_nanos    bigint NOT NULL,
    cost_nanos           bigint NOT NULL,
    list_cost_nanos      bigint NOT NULL,
    written_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (request_id, attempt, revision, created_at),
    CHECK ((kind = 'adjustment') = (reason IS NOT NULL))
) PARTITION BY RANGE (created_at);

CREATE INDEX ledger_by_project ON ledger (project_id, created_at DESC, request_id);
CREATE INDEX ledger_by_period ON ledger (organization_id, period, created_at, request_id, attempt, revision);
CREATE INDEX ledger_adjustments ON ledger (organization_id, period, project_id) WHERE kind = 'adjustment';

-- The partition of a day, in UTC, unless it is there. Attaching one holds up nobody but who does the same, as creating it
-- in place would.
CREATE FUNCTION ensure_ledger_day(day date) RETURNS void LANGUAGE plpgsql AS $$
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

-- What waits to be added to the roll-ups: who deletes a row here adds it there, in one transaction.
CREATE TABLE rollup_queue (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute             timestamptz NOT NULL,
    period             date NOT NULL,
    corrects_period    date,
    kind               text NOT NULL,
    organization_id    text NOT NULL,
    project_id         text NOT NULL,
    api_key_id         text NOT NULL,
    endpoint           text NOT NULL,
    model              text NOT NULL,
    adapter_id         text,
    adapter_class      text NOT NULL,
    service_tier       text NOT NULL,
    price_version      integer,
    num_requests       bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   bigint NOT NULL,
    cached_cost_nanos  bigint NOT NULL,
    output_cost_nanos  bigint NOT NULL,
    cost_nanos         bigint NOT NULL,
    list_cost_nanos    bigint NOT NULL
);

-- By the time of usage. adapter_id '': none. What cost_nanos has beyond the three kinds are adjustments.
CREATE TABLE usage_rollups (
    organization_id    text NOT NULL,
    width              text NOT NULL CHECK (width IN ('minute', 'hour', 'day')),
    bucket             timestamptz NOT NULL,
    project_id         text NOT NULL,
    api_key_id         text NOT NULL,
    model              text NOT NULL,
    adapter_id         text NOT NULL,
    endpoint           text NOT NULL,
    service_tier       text NOT NULL,
    num_requests       bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   bigint NOT NULL,
    cached_cost_nanos  bigint NOT NULL,
    output_cost_nanos  bigint NOT NULL,
    cost_nanos         bigint NOT NULL,
    PRIMARY KEY (organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier)
);

-- By the month that rows are billed in: what invoices are made of. price_version 0: there were no prices.
CREATE TABLE period_sums (
    organization_id    text NOT NULL,
    period             date NOT NULL,
    project_id         text NOT NULL,
    kind               text NOT NULL,
    corrects_period    date,
    model              text NOT NULL,
    adapter_class      text NOT NULL,
    service_tier       text NOT NULL,
    price_version      integer NOT NULL,
    num_requests       bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   bigint NOT NULL,
    cached_cost_nanos  bigint NOT NULL,
    output_cost_nanos  bigint NOT NULL,
    cost_nanos         bigint NOT NULL,
    list_cost_nanos    bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (organization_id, period, project_id, kind, corrects_period, model, adapter_class,
                               service_tier, price_version)
);

-- Of several prompts in one request, the first one's row has the request's id and counts as the request.
CREATE FUNCTION counts_as_request(kind text, revision integer, request_id text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT kind = 'usage' AND revision = 0 AND position('.' IN request_id) = 0
$$;

CREATE FUNCTION queue_for_rollups() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rollup_queue (
        minute, period, corrects_period, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_id,
        adapter_class, service_tier, price_version, num_requests, prompt_tokens, cached_tokens, completion_tokens,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT date_trunc('minute', n.created_at, 'UTC') AS minute, n.period, n.corrects_period, n.kind, n.organization_id,
           n.project_id, n.api_key_id, n.endpoint, n.model, n.adapter_id, n.adapter_class, n.service_tier,
           n.price_version,
           count(*) FILTER (WHERE counts_as_request(n.kind, n.revision, n.request_id)),
           sum(n.prompt_tokens), sum(n.cached_tokens), sum(n.completion_tokens), sum(n.input_cost_nanos),
           sum(n.cached_cost_nanos), sum(n.output_cost_nanos), sum(n.cost_nanos), sum(n.list_cost_nanos)
    FROM new_rows n GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13;
    RETURN NULL;
END
$$;

CREATE TRIGGER ledger_rolled_up AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_for_rollups();

-- On the rows and so on every partition: neither a hand nor a gateway of another version gets past it.
CREATE FUNCTION guard_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN RAISE EXCEPTION 'the ledger is append-only'; END IF;
    IF NEW.period < open_from(NEW.organization_id) THEN RAISE EXCEPTION 'period % is closed', NEW.period; END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER ledger_guarded BEFORE INSERT OR UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION guard_ledger();
CREATE TRIGGER ledger_keeps_rows BEFORE TRUNCATE ON ledger EXECUTE FUNCTION refuse_change();

-- What there is moves. Nothing had a price, and limits have counted it.
LOCK TABLE usage_events IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER usage_settled ON usage_events;
DROP TRIGGER usage_corrected ON usage_events;
DROP FUNCTION settle_new_usage();
DROP FUNCTION settle_changed_usage();

SELECT ensure_ledger_day(day) FROM (
    SELECT DISTINCT (created_at AT TIME ZONE 'UTC')::date AS day FROM usage_events ORDER BY day
) days;

INSERT INTO ledger (
    request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
    adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
    prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
    queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at, period,
    input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
SELECT request_id, attempt, 0, 'usage', organization_id, project_id, api_key_id, endpoint, model,
       adapter_id, adapter_version, adapter_digest, CASE WHEN adapter_id IS NULL THEN 'none' ELSE 'default' END,
       'default', stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
       queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at,
       month_of(created_at), 0, 0, 0, 0, 0
FROM usage_events;

TRUNCATE usage_events;
DROP INDEX usage_events_by_project;
ALTER TABLE usage_events ADD COLUMN service_tier text NOT NULL DEFAULT 'default';

SELECT ensure_ledger_day(current_date + day) FROM generate_series(0, 7) day;

-- The price that is in force for a row: of the entries that match, the one that names the most, its model first.
-- Without an entry it costs nothing.
CREATE FUNCTION price_of(
    the_organization text, the_project text, the_model text, the_class text, the_tier text, instant timestamptz,
    OUT version integer, OUT input_nanos bigint, OUT cached_input_nanos bigint, OUT output_nanos bigint,
    OUT basis_points integer
) LANGUAGE sql STABLE AS $$
    SELECT v.version, coalesce(p.input_nanos, 0), coalesce(p.cached_input_nanos, 0), coalesce(p.output_nanos, 0),
           coalesce(d.basis_points, 0)
    FROM (
        SELECT max(b.version) AS version FROM price_versions b
        WHERE b.organization_id = the_organization AND b.effective_at <= instant
    ) v
    LEFT JOIN LATERAL (
        SELECT e.input_nanos, e.cached_input_nanos, e.output_nanos FROM prices e
        WHERE e.organization_id = the_organization AND e.version = v.version
            AND e.model IN (the_model, split_part(the_model, ':', 1), '*')
            AND e.adapter_class IN (the_class, '*') AND e.service_tier IN (the_tier, '*')
        ORDER BY e.model = the_model DESC, e.model <> '*' DESC, e.adapter_class <> '*' DESC, e.service_tier <> '*' DESC
        LIMIT 1
    ) p ON true
    LEFT JOIN price_discounts d ON d.organization_id = the_organization AND d.version = v.version
        AND d.project_id = the_project
$$;

-- One rounding per row, half up: each kind gets what the running sum grows by when it is added. Multiplied rather than
-- divided, since that is exact.
CREATE FUNCTION cost_of(
    uncached_tokens bigint, cached_tokens bigint, output_tokens bigint,
    input_nanos bigint, cached_input_nanos bigint, output_nanos bigint, basis_points integer,
    OUT input_cost_nanos bigint, OUT cached_cost_nanos bigint, OUT output_cost_nanos bigint,
    OUT cost_nanos bigint, OUT list_cost_nanos bigint
) LANGUAGE sql IMMUTABLE AS $$
    SELECT r.input, r.cached - r.input, r.total - r.cached, r.total, r.list
    FROM (
        SELECT round(s.input * s.part)::bigint AS input, round((s.input + s.cached) * s.part)::bigint AS cached,
               round((s.input + s.cached + s.output) * s.part)::bigint AS total,
               round((s.input + s.cached + s.output) * 0.000001)::bigint AS list
        FROM (
            SELECT uncached_tokens::numeric * input_nanos AS input, cached_tokens::numeric * cached_input_nanos AS cached,
                   output_tokens::numeric * output_nanos AS output, (10000 - basis_points) * 0.0000000001 AS part
        ) s
    ) r
$$;

-- Writes attempts to the ledger, each once, at the prices of its created_at; returns those that had no row yet.
--
-- Of two copies of one attempt counts the one that did not end in 'error', with the larger numbers: a row that did is
-- what a gateway saw before it lost its engine, and the difference to the engine's own count becomes a row beside it.
-- The lock comes first: while it is held, nobody closes a period, sets prices or makes a limit, and what is read after
-- it is what holds when this transaction ends. Of the ledger as a whole alone, as everywhere: its partitions are many, and
-- tidying up one of them would be in the way.
CREATE FUNCTION write_usage(events usage_events[]) RETURNS TABLE (new_request_id text, new_attempt integer)
    LANGUAGE plpgsql AS $$
DECLARE
    num_new  bigint;
BEGIN
    PERFORM ensure_ledger_day(day) FROM (
        SELECT DISTINCT (e.created_at AT TIME ZONE 'UTC')::date AS day FROM unnest(events) e ORDER BY day
    ) days;
    LOCK TABLE ONLY ledger IN ROW EXCLUSIVE MODE;
    RETURN QUERY
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at,
        period, corrects_period, price_version,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT e.request_id, e.attempt, 0, 'usage', e.organization_id, e.project_id, e.api_key_id, e.endpoint, e.model,
           e.adapter_id, e.adapter_version, e.adapter_digest, c.adapter_class, e.service_tier, e.stream,
           e.prompt_tokens, e.cached_tokens, e.completion_tokens, e.discarded_tokens, e.finish_reason,
           e.queue_ms, e.prefill_ms, e.decode_ms, e.ttft_ms, e.latency_ms, e.adapter_load_bytes, e.created_at,
           e.finished_at, greatest(m.month, m.open), CASE WHEN m.month < m.open THEN m.month END, p.version, n.*
    FROM unnest(events) e
        CROSS JOIN LATERAL (SELECT month_of(e.created_at) AS month, open_from(e.organization_id) AS open) m
        CROSS JOIN LATERAL (
            SELECT CASE WHEN e.adapter_id IS NULL THEN 'none'
                ELSE coalesce((SELECT a.price_class FROM adapters a WHERE a.id = e.adapter_id), 'default')
            END AS adapter_class
        ) c
        CROSS JOIN LATERAL price_of(e.organization_id, e.project_id, e.model, c.adapter_class, e.service_tier,
                                    e.created_at) p
        CROSS JOIN LATERAL cost_of(e.prompt_tokens - e.cached_tokens, e.cached_tokens, e.completion_tokens,
                                   p.input_nanos, p.cached_input_nanos, p.output_nanos, p.basis_points) n
    ORDER BY e.request_id, e.attempt
    ON CONFLICT DO NOTHING RETURNING request_id, attempt;
    GET DIAGNOSTICS num_new = ROW_COUNT;
    IF num_new < cardinality(events) THEN
        PERFORM correct_usage(events);
    END IF;
END
$$;

-- Under the lock of each attempt's first row, so that of two better counts the second one sees the first.
CREATE FUNCTION correct_usage(events usage_events[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ledger l JOIN unnest(events) e
        ON (l.request_id, l.attempt, l.revision, l.created_at) = (e.request_id, e.attempt, 0, e.created_at)
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
    WHERE k.finish_reason = 'error'
        AND (e.finish_reason <> 'error' OR e.prompt_tokens > k.prompt OR e.completion_tokens > k.completion)
    ORDER BY f.request_id, f.attempt;
END
$$;

-- One row per attempt: what it comes to, with the reason that its best count gave.
CREATE VIEW usage_attempts AS
    SELECT f.request_id, f.attempt, f.organization_id, f.project_id, f.api_key_id, f.endpoint, f.model,
           f.adapter_id, f.adapter_version, f.adapter_digest, f.stream,
           k.prompt_tokens, k.cached_tokens, k.completion_tokens, k.discarded_tokens, k.finish_reason,
           k.queue_ms, k.prefill_ms, k.decode_ms, f.ttft_ms, f.latency_ms, k.adapter_load_bytes,
           f.created_at, f.finished_at, f.service_tier, f.adapter_class, f.price_version, k.cost_nanos
    FROM ledger f CROSS JOIN LATERAL (
        SELECT sum(r.prompt_tokens)::bigint AS prompt_tokens, sum(r.cached_tokens)::bigint AS cached_tokens,
               sum(r.completion_tokens)::bigint AS completion_tokens,
               sum(r.discarded_tokens)::bigint AS discarded_tokens,
               (array_agg(r.finish_reason ORDER BY r.revision DESC))[1] AS finish_reason,
               sum(r.queue_ms) AS queue_ms, sum(r.prefill_ms) AS prefill_ms, sum(r.decode_ms) AS decode_ms,
               sum(r.adapter_load_bytes)::bigint AS adapter_load_bytes, sum(r.cost_nanos)::bigint AS cost_nanos
        FROM ledger r
        WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
    ) k
    WHERE f.kind = 'usage' AND f.revision = 0;

-- The door. RETURNING gives those who come through it no rows: their counters of written events stand still, nothing
-- else of theirs depends on it.
CREATE FUNCTION pass_to_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM write_usage(ARRAY[NEW]);
    RETURN NULL;
END
$$;

CREATE TRIGGER usage_events_is_a_door BEFORE INSERT ON usage_events
    FOR EACH ROW EXECUTE FUNCTION pass_to_ledger();

-- What a row of the ledger, or a sum of rows, is of a limit's unit. usage_amount of before goes with the gateways that
-- call it.
CREATE FUNCTION limited_amount(unit text, num_requests bigint, input_tokens bigint, output_tokens bigint, cost bigint)
    RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE unit
        WHEN 'requests' THEN num_requests
        WHEN 'input_tokens' THEN input_tokens
        WHEN 'output_tokens' THEN output_tokens
        WHEN 'tokens' THEN input_tokens + output_tokens
        WHEN 'cost_nanos' THEN cost
        ELSE 0
    END
$$;

-- Limits count what the ledger stores. A cost without a window is a prepaid balance; see credit_grants.
CREATE FUNCTION settle_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_account(s.the_limit, s.window_start, s.amount) FROM (
        SELECT l AS the_limit, limit_window(l.period, e.created_at) AS window_start,
               sum(limited_amount(l.unit, counts_as_request(e.kind, e.revision, e.request_id)::integer,
                                  e.prompt_tokens, e.completion_tokens, e.cost_nanos))::bigint AS amount
        FROM new_rows e JOIN limits l ON l.organization_id = e.organization_id
            AND (l.period <> 'none' OR l.unit = 'cost_nanos')
            AND (l.project_id IS NULL OR l.project_id = e.project_id)
            AND (l.api_key_id IS NULL OR l.api_key_id = e.api_key_id)
            AND (l.model IS NULL OR l.model = e.model)
        GROUP BY l.id, l, window_start ORDER BY l.id, window_start
    ) s WHERE s.amount <> 0;
    RETURN NULL;
END
$$;

CREATE TRIGGER ledger_settled AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION settle_ledger();

-- A new limit counts what its window has seen, whichever version of the gateway makes it; a balance begins at nothing.
--
-- The lock comes before the limit does: whoever wrote usage until then has committed, and whoever writes it later finds
-- the limit. It comes before `installation` is changed, too, so that while it is waited for nothing else has to wait but
-- the ledger, and that not for long.
CREATE FUNCTION await_ledger() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
BEGIN
    IF NEW.period <> 'none' THEN LOCK TABLE ONLY ledger IN SHARE MODE; END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER limits_await_ledger BEFORE INSERT ON limits FOR EACH ROW EXECUTE FUNCTION await_ledger();

-- Out of sums, since a month of the ledger would take too long. It is exact: every row is in the roll-ups or in their
-- queue, where the transaction that wrote it left it; what moves from there moves in one transaction, and this is one
-- statement, which sees all of that or nothing. Windows begin where buckets of that width do, in UTC as well.
CREATE FUNCTION settle_past_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    since        timestamptz := limit_window(NEW.period, now());
    bucket_width text := CASE NEW.period WHEN 'minute' THEN 'minute' ELSE 'day' END;
BEGIN
    IF NEW.period = 'none' THEN RETURN NULL; END IF;
    INSERT INTO limit_accounts (limit_id, window_start, settled)
    SELECT NEW.id, limit_window(NEW.period, s.instant),
           sum(limited_amount(NEW.unit, s.num_requests, s.prompt_tokens, s.completion_tokens, s.cost_nanos))
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

CREATE TRIGGER limits_count_the_past AFTER INSERT ON limits FOR EACH ROW EXECUTE FUNCTION settle_past_usage();

-- Gateways of the version before clear away accounts of windows that began long ago; a balance began in 1970.
CREATE FUNCTION keep_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.window_start = 'epoch' AND EXISTS (SELECT FROM limits WHERE id = OLD.limit_id) THEN RETURN NULL; END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER limit_accounts_keep_balances BEFORE DELETE ON limit_accounts
    FOR EACH ROW EXECUTE FUNCTION keep_balance();

-- Credits, drawn oldest first. lapsed_nanos: what was left of one when it expired; NULL before that.
--
-- balance = credits - lapsed - drawn by closed periods - cost of open periods. A project is prepaid when it has a hard
-- limit of its cost without a window: its account is the sum of what the ledger wrote since, and its max is that sum
-- and the balance, computed anew from the rows whenever credits or periods change.
CREATE TABLE credit_grants (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    amount_nanos     bigint NOT NULL CHECK (amount_nanos > 0),
    reason           text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at       timestamptz,
    lapsed_nanos     bigint CHECK (lapsed_nanos BETWEEN 0 AND amount_nanos),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
);

CREATE INDEX credit_grants_by_project ON credit_grants (project_id, created_at, id);
CREATE INDEX credit_grants_to_lapse ON credit_grants (expires_at) WHERE lapsed_nanos IS NULL AND expires_at IS NOT NULL;

-- What closed periods took of them.
CREATE TABLE credit_draws (
    grant_id      text NOT NULL REFERENCES credit_grants (id),
    period        date NOT NULL,
    amount_nanos  bigint NOT NULL CHECK (amount_nanos > 0),
    PRIMARY KEY (grant_id, period)
);

CREATE TRIGGER credit_draws_stay BEFORE UPDATE OR DELETE ON credit_draws
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- document: JSON, kept as the very text that was issued.
CREATE TABLE invoices (
    number           text NOT NULL,
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    period           date NOT NULL,
    issued_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    document         text NOT NULL,
    PRIMARY KEY (organization_id, number),
    UNIQUE (organization_id, project_id, period),
    FOREIGN KEY (organization_id, period) REFERENCES billing_periods (organization_id, start)
);

CREATE TRIGGER invoices_stay BEFORE UPDATE OR DELETE ON invoices FOR EACH ROW EXECUTE FUNCTION refuse_change();
