-- Labels that a pool asks of its hosts, and hosts that could not prepare a model.

ALTER TABLE pools ADD COLUMN placement jsonb NOT NULL DEFAULT '{}';

CREATE TABLE host_failures (
    host_id       text NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    pool_id       text NOT NULL,
    revision      integer NOT NULL,
    why           text NOT NULL,
    num_failures  integer NOT NULL DEFAULT 1,
    failed_at     timestamptz NOT NULL DEFAULT now(),
    retry_at      timestamptz NOT NULL,
    PRIMARY KEY (host_id, pool_id, revision),
    FOREIGN KEY (pool_id, revision) REFERENCES pool_revisions (pool_id, revision) ON DELETE CASCADE
);
