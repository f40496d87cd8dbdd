-- Pools whose replicas are servers of other makers, and the keys that these servers ask for.

ALTER TABLE pool_revisions ADD COLUMN driver text NOT NULL DEFAULT 'lorikeet' CHECK (driver ~ '^[a-z][a-z0-9-]{0,31}$');

ALTER TABLE pool_revisions
    DROP CONSTRAINT pool_revisions_check,
    ADD CONSTRAINT pool_revisions_check CHECK ((folder IS NULL) = (base_digest IS NULL) OR driver <> 'lorikeet');

CREATE TABLE backend_keys (
    pool_id      text PRIMARY KEY REFERENCES pools (id),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    hint         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX backend_keys_by_content_key ON backend_keys (content_key);
