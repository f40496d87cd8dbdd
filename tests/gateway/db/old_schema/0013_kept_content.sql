-- What is kept of tenants' content: replies for an Idempotency-Key, and stored chat completions. Gateways encrypt it;
-- each row names the key that opens it.

-- keep_replies: whether a reply may be kept for the day that its Idempotency-Key lasts. replies_from: those kept up to
-- then are not shown, since it was forbidden at that time. store_days: how long stored chat completions are kept; 0: none
-- are. Content that is not to be shown any more is deleted little by little, and that of a purged project, too.
ALTER TABLE projects
    ADD COLUMN keep_replies boolean NOT NULL DEFAULT true,
    ADD COLUMN replies_from timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN store_days integer NOT NULL DEFAULT 0 CHECK (store_days BETWEEN 0 AND 365);

CREATE OR REPLACE TRIGGER projects_changed
    AFTER UPDATE OF suspended_at, archived_at, keep_replies, store_days
    ON projects FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();

-- Ids of the keys that gateways encrypt with; the keys themselves are never here. used_at: when one last said so.
CREATE TABLE content_keys (
    id       text PRIMARY KEY,
    used_at  timestamptz NOT NULL DEFAULT now()
);

-- One row per key that a client sent: whoever inserts it executes the request. fingerprint: of the request. request_id:
-- of the request that executes. alive_until: when its gateway has not been heard of for a while; a running request that
-- stays past that is lost. state: whether a reply is in kept_replies, or why not; who runs a lost one may still keep its
-- own.
CREATE TABLE idempotency_keys (
    project_id   text NOT NULL REFERENCES projects (id),
    key_sha256   bytea NOT NULL,
    fingerprint  bytea NOT NULL,
    request_id   text NOT NULL,
    state        text NOT NULL DEFAULT 'running'
                 CHECK (state IN ('running', 'kept', 'too_large', 'not_allowed', 'lost')),
    alive_until  timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (project_id, key_sha256)
);

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- A table by itself, since backups leave its rows out: the key that opens them lies beside.
CREATE TABLE kept_replies (
    project_id   text NOT NULL,
    key_sha256   bytea NOT NULL,
    kept_at      timestamptz NOT NULL DEFAULT now(),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (project_id, key_sha256),
    FOREIGN KEY (project_id, key_sha256) REFERENCES idempotency_keys ON DELETE CASCADE
);

CREATE INDEX kept_replies_by_time ON kept_replies (project_id, kept_at);
CREATE INDEX kept_replies_by_content_key ON kept_replies (content_key);

-- tags: one of each pair of its metadata, by which it is found; only who has the key can make them.
CREATE TABLE stored_chats (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    model            text NOT NULL,
    tags             bytea[] NOT NULL,
    content_key      text NOT NULL,
    sealed_metadata  bytea NOT NULL,
    sealed_messages  bytea NOT NULL,
    sealed_reply     bytea NOT NULL,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX stored_chats_by_time ON stored_chats (project_id, created_at, id);
CREATE INDEX stored_chats_by_tag ON stored_chats USING gin (tags);
CREATE INDEX stored_chats_by_content_key ON stored_chats (content_key);

-- What is encrypted does not get smaller.
ALTER TABLE kept_replies ALTER COLUMN sealed SET STORAGE EXTERNAL;
ALTER TABLE stored_chats
    ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_messages SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_reply SET STORAGE EXTERNAL;
