-- Traffic: how many requests there were, how they ended and how long they took, by minute, hour and day; and the requests
-- that were refused before they ran.

-- level: sums of the whole organization, of each project, of each model with its adapters and versions in all projects,
-- or of every combination ('full'). A column that a level does not tell apart is '' there. adapter_id '' and
-- adapter_version 0: no adapter. Each level and width is a partition, so that the rows of an hour are stored side by side
-- rather than among the rows of its minutes.
CREATE TABLE traffic_rollups (
    organization_id    text NOT NULL,
    level              text NOT NULL,
    width              text NOT NULL,
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
    num_refused        bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, level, width, project_id, bucket, model, adapter_id, adapter_version)
) PARTITION BY LIST (level);

-- How many times fell into each bucket of time (see time_bucket); no row where no time was known. Apart from the sums,
-- since the counts are three quarters of the bytes and few reports read them.
CREATE TABLE traffic_times (
    organization_id    text NOT NULL,
    level              text NOT NULL,
    width              text NOT NULL,
    bucket             timestamptz NOT NULL,
    project_id         text NOT NULL,
    model              text NOT NULL,
    adapter_id         text NOT NULL,
    adapter_version    integer NOT NULL,
    ttft_counts        integer[] NOT NULL,
    tpot_counts        integer[] NOT NULL,
    PRIMARY KEY (organization_id, level, width, project_id, bucket, model, adapter_id, adapter_version)
) PARTITION BY LIST (level);

DO $$
DECLARE
    whole text;
    level text;
    width text;
BEGIN
    FOREACH whole IN ARRAY ARRAY['traffic_rollups', 'traffic_times'] LOOP
        FOREACH level IN ARRAY ARRAY['organization', 'project', 'model', 'full'] LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES IN (%L) PARTITION BY LIST (width)',
                           whole || '_' || level, whole, level);
            FOREACH width IN ARRAY ARRAY['minute', 'hour', 'day'] LOOP
                EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES IN (%L)',
                               whole || '_' || level || '_' || width, whole || '_' || level, width);
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;

CREATE INDEX traffic_rollups_by_model ON traffic_rollups_model (organization_id, width, model, bucket);
CREATE INDEX traffic_rollups_by_adapter ON traffic_rollups_model (organization_id, width, adapter_id, bucket);
-- These find the projects that had requests in a minute.
CREATE INDEX traffic_rollups_project_by_minute ON traffic_rollups_project_minute (organization_id, bucket);
CREATE INDEX traffic_rollups_full_by_minute ON traffic_rollups_full_minute (organization_id, bucket);

-- Requests of known tenants that were refused before they ran: the reason, and nothing that they said. Requests of one
-- minute that were refused for the same reason share a row.
CREATE TABLE refusals (
    -- Lists are ordered by this number, which counts the refusals of all organizations; the API shows public_id.
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id        text NOT NULL UNIQUE DEFAULT 'ref_' || replace(gen_random_uuid()::text, '-', ''),
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    api_key_id       text NOT NULL,
    minute           timestamptz NOT NULL,
    kind             bytea NOT NULL,
    -- The ids of the first of these requests.
    request_ids      text[] NOT NULL,
    endpoint         text NOT NULL,
    model            text NOT NULL,
    status           integer NOT NULL,
    code             text NOT NULL,
    type             text NOT NULL,
    param            text NOT NULL,
    message          text NOT NULL,
    -- The limit that refused, as it stood.
    limited_by       jsonb,
    num              bigint NOT NULL CHECK (num > 0),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (project_id, minute, kind)
);

CREATE INDEX refusals_by_project ON refusals (project_id, id DESC);
CREATE INDEX refusals_by_organization ON refusals (organization_id, id DESC);
CREATE INDEX refusals_by_request ON refusals USING gin (request_ids);
CREATE INDEX refusals_by_time ON refusals (created_at);
