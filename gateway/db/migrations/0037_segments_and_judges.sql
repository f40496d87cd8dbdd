-- The segments of a request are known all together or not at all, and the votes of judges are counted apart.

UPDATE experiment_requests
SET api_key_id = NULL, endpoint = NULL, stream = NULL, service_tier = NULL, gateway = NULL
WHERE num_nonnulls(api_key_id, endpoint, stream, service_tier, gateway) NOT IN (0, 5);

ALTER TABLE experiment_requests
    ADD CHECK (num_nonnulls(api_key_id, endpoint, stream, service_tier, gateway) IN (0, 5));

-- A later attempt lets the bookkeeper count a unit anew by its rows.
INSERT INTO experiment_events (experiment_id, kind, request_id, attempt, revision, finish_reason, created_at)
SELECT DISTINCT ON (c.experiment_id, c.digest) c.experiment_id, 'usage', r.request_id, 1, 0, 'stop', r.created_at
FROM feedback f
    JOIN feedback_counted c ON c.feedback_id = f.id
    JOIN experiment_requests r ON r.experiment_id = c.experiment_id AND r.digest = c.digest
WHERE f.source = 'judge'
ORDER BY c.experiment_id, c.digest, r.created_at;
