-- What requests say and get, redacted and encrypted, of projects that log it.

-- log_content_days: how long; 0: nothing is logged. contents_from: what was logged up to then is not shown, since logging
-- was turned off at that time.
ALTER TABLE projects
    ADD COLUMN log_content_days integer NOT NULL DEFAULT 0 CHECK (log_content_days BETWEEN 0 AND 365),
    ADD COLUMN contents_from timestamptz NOT NULL DEFAULT '-infinity';

CREATE OR REPLACE TRIGGER projects_changed
    AFTER UPDATE OF suspended_at, archived_at, keep_replies, store_days, log_content_days
    ON projects FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();

-- A table by itself, since backups leave its rows out. expires_at: what was promised when it was logged; more days do not
-- keep it longer, fewer days hide it sooner.
CREATE TABLE request_contents (
    project_id   text NOT NULL REFERENCES projects (id),
    request_id   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (project_id, request_id)
);

CREATE INDEX request_contents_by_time ON request_contents (project_id, created_at);
CREATE INDEX request_contents_by_expiry ON request_contents (expires_at);
CREATE INDEX request_contents_by_content_key ON request_contents (content_key);

-- What is encrypted does not get smaller.
ALTER TABLE request_contents ALTER COLUMN sealed SET STORAGE EXTERNAL;
