-- Keys that projects bring for servers of other makers, and the rows of requests that were sent with one.

CREATE TABLE provider_keys (
    id           text PRIMARY KEY,
    project_id   text NOT NULL REFERENCES projects (id),
    pool_id      text NOT NULL REFERENCES pools (id),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    hint         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    changed_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, pool_id)
);

CREATE INDEX provider_keys_by_pool ON provider_keys (pool_id);
CREATE INDEX provider_keys_by_content_key ON provider_keys (content_key);

ALTER TABLE ledger ADD COLUMN own_key boolean;
