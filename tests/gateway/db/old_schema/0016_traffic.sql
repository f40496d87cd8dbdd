-- Traffic: how many requests, how they ended and how long they took, by minute, hour and day. It begins with this schema;
-- of usage from before there are the sums in usage_rollups.

-- Times are counted in 64 buckets, each a factor of 1.21 wide from floor_ms on: the middle of one is within a tenth of
-- whatever is in it.
CREATE FUNCTION time_bucket(ms double precision, floor_ms double precision) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(63, greatest(0, floor(ln(greatest(ms, floor_ms) / floor_ms) / ln(1.21))))::smallint
$$;

-- Loops over the few places that count: an array taken apart and put together takes several times as long.
CREATE FUNCTION time_counts(buckets smallint[]) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    counts integer[] := array_fill(0, ARRAY[64]);
    bucket integer;
BEGIN
    FOREACH bucket IN ARRAY buckets LOOP
        counts[bucket + 1] := counts[bucket + 1] + 1;
    END LOOP;
    RETURN counts;
END
$$;

CREATE FUNCTION added_counts(known integer[], new integer[]) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    place integer := 0;
    num   integer;
BEGIN
    FOREACH num IN ARRAY new LOOP
        place := place + 1;
        IF num <> 0 THEN known[place] := known[place] + num; END IF;
    END LOOP;
    RETURN known;
END
$$;

CREATE AGGREGATE all_of(smallint[]) (SFUNC = array_cat, STYPE = smallint[], INITCOND = '{}');

-- What waits to be added, apart from rollup_queue: gateways of the version before take from that one and know no traffic.
-- *_buckets: of each request that has the time.
CREATE TABLE traffic_queue (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute             timestamptz NOT NULL,
    organization_id    text NOT NULL,
    project_id         text NOT NULL,
    model              text NOT NULL,
    adapter_id         text NOT NULL,
    adapter_version    integer NOT NULL,
    num_requests       bigint NOT NULL,
    num_stop           bigint NOT NULL,
    num_length         bigint NOT NULL,
    num_cancelled      bigint NOT NULL,
    num_errors         bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cost_nanos         numeric NOT NULL,
    ttft_buckets       smallint[] NOT NULL,
    tpot_buckets       smallint[] NOT NULL
);

-- level: of the whole organization, of each project, of each model with its adapters and versions in all projects, or in
-- full; what it does not tell apart is ''. adapter_id '', adapter_version 0: none. A project's time is one piece of the key,
-- and all projects' as many pieces as there are projects: none is read for another one's sake.
CREATE TABLE traffic_rollups (
    organization_id    text NOT NULL,
    level              text NOT NULL CHECK (level IN ('organization', 'project', 'model', 'full')),
    width              text NOT NULL CHECK (width IN ('minute', 'hour', 'day')),
    bucket             timestamptz NOT NULL,
    project_id         text NOT NULL,
    model              text NOT NULL,
    adapter_id         text NOT NULL,
    adapter_version    integer NOT NULL,
    num_requests       bigint NOT NULL,
    num_stop           bigint NOT NULL,
    num_length         bigint NOT NULL,
    num_cancelled      bigint NOT NULL,
    num_errors         bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    cost_nanos         numeric NOT NULL,
    ttft_counts        integer[] NOT NULL,
    tpot_counts        integer[] NOT NULL,
    PRIMARY KEY (organization_id, level, width, project_id, bucket, model, adapter_id, adapter_version)
);

CREATE INDEX traffic_rollups_by_model ON traffic_rollups (organization_id, width, model, bucket)
    WHERE level = 'model';
CREATE INDEX traffic_rollups_by_adapter ON traffic_rollups (organization_id, width, adapter_id, bucket)
    WHERE level = 'model';

-- A row of a revision above 0 is of an attempt whose record so far ended in "error".
CREATE FUNCTION queue_for_traffic() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO traffic_queue (
        minute, organization_id, project_id, model, adapter_id, adapter_version, num_requests, num_stop, num_length,
        num_cancelled, num_errors, prompt_tokens, cached_tokens, completion_tokens, cost_nanos, ttft_buckets,
        tpot_buckets)
    SELECT date_trunc('minute', n.created_at, 'UTC'), n.organization_id, n.project_id, n.model,
           coalesce(n.adapter_id, ''), coalesce(n.adapter_version, 0),
           count(*) FILTER (WHERE h.is_first),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'stop'),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'length'),
           count(*) FILTER (WHERE h.ended AND n.finish_reason = 'abort'),
           count(*) FILTER (WHERE h.is_first AND n.finish_reason = 'error')
               - count(*) FILTER (WHERE h.ended AND NOT h.is_first AND n.finish_reason <> 'error'),
           sum(n.prompt_tokens), sum(n.cached_tokens), sum(n.completion_tokens), sum(n.cost_nanos),
           coalesce(array_agg(time_bucket(n.ttft_ms, 1.0))
               FILTER (WHERE h.is_first AND n.ttft_ms IS NOT NULL), '{}'),
           coalesce(array_agg(time_bucket((n.latency_ms - n.ttft_ms) / (n.completion_tokens - 1), 0.1))
               FILTER (WHERE h.is_first AND n.latency_ms >= n.ttft_ms AND n.completion_tokens > 1), '{}')
    FROM new_rows n CROSS JOIN LATERAL (
        SELECT counts_as_request(n.kind, n.revision, n.request_id) AS is_first, position('.' IN n.request_id) = 0 AS ended
    ) h
    WHERE n.kind = 'usage'
    GROUP BY 1, 2, 3, 4, 5, 6;
    RETURN NULL;
END
$$;

CREATE TRIGGER ledger_traffic AFTER INSERT ON ledger REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION queue_for_traffic();
