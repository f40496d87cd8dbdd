-- Sums of traffic apart from the counts of times, which are three quarters of a row and of interest for few series; and
-- rows of a level and a width by themselves: an hour's stand side by side, rather than among those of its minutes.

ALTER TABLE traffic_rollups RENAME TO traffic_rollups_before;
ALTER INDEX traffic_rollups_pkey RENAME TO traffic_rollups_before_pkey;
DROP INDEX traffic_rollups_by_model, traffic_rollups_by_adapter;

-- As before: level is of the whole organization, of each project, of each model with its adapters and versions in all
-- projects, or in full; what it does not tell apart is ''. adapter_id '', adapter_version 0: none. A project's time is one
-- piece of the key, and all projects' as many pieces as there are projects: none is read for another one's sake.
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
    PRIMARY KEY (organization_id, level, width, project_id, bucket, model, adapter_id, adapter_version)
) PARTITION BY LIST (level);

-- How often each bucket of time came (see time_bucket). No row where no time was known.
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

INSERT INTO traffic_rollups
SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version, num_requests, num_stop,
       num_length, num_cancelled, num_errors, prompt_tokens, cached_tokens, completion_tokens, cost_nanos
FROM traffic_rollups_before ORDER BY bucket;

INSERT INTO traffic_times
SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version, ttft_counts, tpot_counts
FROM traffic_rollups_before
WHERE 0 < ANY (ttft_counts) OR 0 < ANY (tpot_counts)
ORDER BY bucket;

CREATE INDEX traffic_rollups_by_model ON traffic_rollups_model (organization_id, width, model, bucket);
CREATE INDEX traffic_rollups_by_adapter ON traffic_rollups_model (organization_id, width, adapter_id, bucket);
-- Whose requests a minute has.
CREATE INDEX traffic_rollups_project_by_minute ON traffic_rollups_project_minute (organization_id, bucket);
CREATE INDEX traffic_rollups_full_by_minute ON traffic_rollups_full_minute (organization_id, bucket);

DROP TABLE traffic_rollups_before;

-- Of the requests of a row those that ended in one of these ways; in any, where there is none of them.
CREATE FUNCTION num_ended(sums traffic_rollups, finish_reasons text[]) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN finish_reasons = '{}' THEN sums.num_requests
                ELSE CASE WHEN 'stop' = ANY (finish_reasons) THEN sums.num_stop ELSE 0 END
                     + CASE WHEN 'length' = ANY (finish_reasons) THEN sums.num_length ELSE 0 END
                     + CASE WHEN 'abort' = ANY (finish_reasons) THEN sums.num_cancelled ELSE 0 END
                     + CASE WHEN 'error' = ANY (finish_reasons) THEN sums.num_errors ELSE 0 END
           END
$$;
