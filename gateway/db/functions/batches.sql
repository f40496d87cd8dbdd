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
