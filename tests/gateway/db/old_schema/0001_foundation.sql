-- organization -> project -> API key. A tenant is a project; adapters and usage belong to one.

CREATE TABLE organizations (
    id          text PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE projects (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id),
    name             text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (organization_id, name),
    UNIQUE (organization_id, id)
);

-- The secret is never stored: sha256 is the digest of the whole key, public the part that may be shown.
CREATE TABLE api_keys (
    id               text PRIMARY KEY,
    kind             text NOT NULL CHECK (kind IN ('project', 'admin')),
    organization_id  text NOT NULL REFERENCES organizations (id),
    project_id       text,
    name             text NOT NULL,
    public           text NOT NULL,
    sha256           bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    scopes           text[] NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz,
    revoked_at       timestamptz,
    last_used_at     timestamptz,
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id),
    CHECK ((kind = 'admin') = (project_id IS NULL))
);

CREATE INDEX api_keys_by_project ON api_keys (project_id, created_at, id);

CREATE TABLE adapters (
    id               text PRIMARY KEY,
    project_id       text NOT NULL REFERENCES projects (id),
    name             text NOT NULL,
    current_version  integer NOT NULL CHECK (current_version >= 1),
    created_at       timestamptz NOT NULL DEFAULT now(),
    removed_at       timestamptz
);

-- A removed adapter keeps its row for the ledger's sake; its name is free again.
CREATE UNIQUE INDEX adapters_by_name ON adapters (project_id, name) WHERE removed_at IS NULL;

CREATE TABLE adapter_versions (
    adapter_id  text NOT NULL REFERENCES adapters (id),
    version     integer NOT NULL CHECK (version >= 1),
    digest      text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),
    rank        integer NOT NULL CHECK (rank >= 1),
    size_bytes  bigint NOT NULL CHECK (size_bytes >= 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (adapter_id, version)
);

ALTER TABLE adapters ADD FOREIGN KEY (id, current_version) REFERENCES adapter_versions (adapter_id, version)
    DEFERRABLE INITIALLY DEFERRED;

CREATE INDEX adapter_versions_by_digest ON adapter_versions (digest);

-- The ledger: append only. No foreign keys, since a row must be writable whatever became of what it names.
CREATE TABLE usage_events (
    request_id          text NOT NULL,
    attempt             integer NOT NULL,
    organization_id     text NOT NULL,
    project_id          text NOT NULL,
    api_key_id          text NOT NULL,
    endpoint            text NOT NULL,
    model               text NOT NULL,
    adapter_id          text,
    adapter_version     integer,
    adapter_digest      text,
    stream              boolean NOT NULL,
    prompt_tokens       bigint NOT NULL CHECK (prompt_tokens >= 0),
    cached_tokens       bigint NOT NULL CHECK (cached_tokens >= 0),
    completion_tokens   bigint NOT NULL CHECK (completion_tokens >= 0),
    discarded_tokens    bigint NOT NULL CHECK (discarded_tokens >= 0),
    finish_reason       text NOT NULL,
    queue_ms            double precision NOT NULL,
    prefill_ms          double precision NOT NULL,
    decode_ms           double precision NOT NULL,
    ttft_ms             double precision,
    latency_ms          double precision,
    adapter_load_bytes  bigint NOT NULL,
    created_at          timestamptz NOT NULL,
    finished_at         timestamptz NOT NULL,
    PRIMARY KEY (request_id, attempt)
);

CREATE INDEX usage_events_by_project ON usage_events (project_id, created_at DESC, request_id);

-- One row. id names this database to the engines; change_version counts what caches must notice. The counter is
-- updated inside the changing transaction, so it grows in the order of commits and a poll can never overtake one.
CREATE TABLE installation (
    only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id              text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    change_version  bigint NOT NULL DEFAULT 0
);

INSERT INTO installation DEFAULT VALUES;

CREATE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed  record;
    version  bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    UPDATE installation SET change_version = change_version + 1 RETURNING change_version INTO version;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', version, 'table', TG_TABLE_NAME, 'id', changed.id, 'project_id', changed.project_id)::text);
    RETURN NULL;
END
$$;

-- last_used_at is written all the time and nobody caches it.
CREATE TRIGGER api_keys_changed
    AFTER INSERT OR DELETE OR UPDATE OF kind, organization_id, project_id, sha256, scopes, expires_at, revoked_at
    ON api_keys FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE TRIGGER adapters_changed
    AFTER INSERT OR DELETE OR UPDATE ON adapters FOR EACH ROW EXECUTE FUNCTION announce_change();
