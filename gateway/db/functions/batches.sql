-- Returns an upper bound of the tokens of input that batches still have to compute, of a project or, with NULL, of the
-- organization, and of one model or, with NULL, of all: each byte of a line counts as a token until the line has a result.
CREATE OR REPLACE FUNCTION enqueued_batch_tokens(the_organization text, the_project text, the_model text)
    RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(l.num_bytes), 0)::bigint
    FROM batches b
         JOIN projects p ON p.id = b.project_id
         JOIN batch_lines l ON l.project_id = b.project_id AND l.batch_id = b.id
    WHERE p.organization_id = the_organization AND (the_project IS NULL OR p.id = the_project)
        AND b.status = 'in_progress' AND l.state IN ('waiting', 'running') AND (the_model IS NULL OR l.model = the_model)
$$;

-- Returns an attempt as one that nobody is billed for: all its tokens are discarded ones.
CREATE OR REPLACE FUNCTION disowned(event ledger) RETURNS ledger LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    event.discarded_tokens := event.discarded_tokens + event.completion_tokens;
    event.prompt_tokens := 0;
    event.cached_tokens := 0;
    event.completion_tokens := 0;
    event.finish_reason := 'superseded';
    event.ttft_ms := NULL;
    event.latency_ms := NULL;
    RETURN event;
END
$$;

-- Returns attempts as they are to be written: those at disowned lines of batches count for nothing.
CREATE OR REPLACE FUNCTION with_disowned(events ledger[]) RETURNS ledger[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(events) e WHERE e.service_tier = 'batch') THEN
        RETURN events;
    END IF;
    RETURN ARRAY(
        SELECT CASE WHEN d.request_id IS NULL THEN e.event ELSE disowned(e.event) END
        FROM (SELECT e AS event, split_part(e.request_id, '.', 1) AS line FROM unnest(events) e) e
             LEFT JOIN disowned_lines d ON d.request_id = e.line
    );
END
$$;

-- Has nobody billed for lines of a batch that were begun at these times and have no result, neither for what the ledger
-- has of them nor for what it is still to be told. No usage is written meanwhile: who writes next sees these lines. The
-- days of the ledger that cannot have them are left out, as in correct_usage.
CREATE OR REPLACE FUNCTION disown_lines(the_project text, the_batch text, request_ids text[], begun timestamptz[])
    RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    first_at  timestamptz;
    last_at   timestamptz;
    known     ledger[];
BEGIN
    PERFORM hold_ledger();
    INSERT INTO disowned_lines (request_id, project_id, batch_id)
        SELECT id, the_project, the_batch FROM unnest(request_ids) id ON CONFLICT DO NOTHING;
    SELECT min(at), max(at) INTO first_at, last_at FROM unnest(begun) at;
    known := ARRAY(
        SELECT whole_attempt(r ORDER BY r.revision) FROM ledger r
        WHERE r.created_at BETWEEN first_at AND last_at AND r.project_id = the_project
            AND r.service_tier = 'batch' AND split_part(r.request_id, '.', 1) = ANY (request_ids)
        GROUP BY r.request_id, r.attempt, r.created_at
    );
    PERFORM write_usage(known);
END
$$;
