ALTER TABLE batches ADD COLUMN open_lines jsonb NOT NULL DEFAULT '{}';

UPDATE batches b SET open_lines = (
    SELECT coalesce(jsonb_object_agg(name, number), '{}') FROM (
        SELECT coalesce(p.name, '') AS name, count(*) AS number
        FROM batch_lines l LEFT JOIN pools p ON p.name = split_part(l.model, ':', 1) AND p.removed_at IS NULL
        WHERE l.project_id = b.project_id AND l.batch_id = b.id AND l.state IN ('waiting', 'running')
        GROUP BY 1) by_pool)
WHERE status = 'in_progress';
