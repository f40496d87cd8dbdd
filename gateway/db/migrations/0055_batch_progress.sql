ALTER TABLE batches
    ADD COLUMN failures     jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN lines_per_s  double precision NOT NULL DEFAULT 0,
    ADD COLUMN counted_at   timestamptz;

CREATE TABLE disowned_lines (
    request_id  text PRIMARY KEY,
    project_id  text NOT NULL,
    batch_id    text NOT NULL,
    FOREIGN KEY (project_id, batch_id) REFERENCES batches ON DELETE CASCADE
);

CREATE INDEX disowned_lines_by_batch ON disowned_lines (project_id, batch_id);
