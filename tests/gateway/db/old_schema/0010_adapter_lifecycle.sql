-- Adapters as a product: versions with a life of their own, how they came in, aliases, sharing, settings.

-- NULL while no version was ever ready: a gateway that knows no states finds no such adapter.
ALTER TABLE adapters ALTER COLUMN current_version DROP NOT NULL;

-- previous_version: what was current before, for a rollback. defaults: of a request that does not say otherwise.
-- last_promotion: the number of the latest wish that some version become current. current_promotion: of the one that
-- current_version follows. A version that becomes ready late does not undo what was wished after it.
ALTER TABLE adapters
    ADD COLUMN previous_version integer,
    ADD COLUMN last_promotion bigint NOT NULL DEFAULT 0,
    ADD COLUMN current_promotion bigint NOT NULL DEFAULT 0,
    ADD COLUMN pinned boolean NOT NULL DEFAULT false,
    ADD COLUMN defaults jsonb NOT NULL DEFAULT '{}',
    ADD FOREIGN KEY (id, previous_version) REFERENCES adapter_versions (adapter_id, version)
        DEFERRABLE INITIALLY DEFERRED;

-- 'ready' by default: that is what gateways mean that know no states.
-- promotion: the number of the wish that it become current once it is ready; NULL where nobody wishes that.
-- claimed_at: the last sign of life of the gateway that probes it. num_probes: how often one has begun to.
ALTER TABLE adapter_versions
    ADD COLUMN state text NOT NULL DEFAULT 'ready'
        CHECK (state IN ('inspected', 'probed', 'ready', 'rejected', 'retired', 'deleted')),
    ADD COLUMN reason text,
    ADD COLUMN source text NOT NULL DEFAULT 'upload',
    ADD COLUMN promotion bigint,
    ADD COLUMN report jsonb,
    ADD COLUMN probe jsonb,
    ADD COLUMN claimed_at timestamptz,
    ADD COLUMN num_probes integer NOT NULL DEFAULT 0,
    ADD COLUMN changed_at timestamptz NOT NULL DEFAULT now();

CREATE INDEX adapter_versions_to_probe ON adapter_versions (created_at) WHERE state IN ('inspected', 'probed');

-- A version's content never changes, and its life goes one way.
CREATE FUNCTION keep_adapter_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.adapter_id, NEW.version, NEW.digest, NEW.rank, NEW.size_bytes, NEW.created_at)
        IS DISTINCT FROM (OLD.adapter_id, OLD.version, OLD.digest, OLD.rank, OLD.size_bytes, OLD.created_at) THEN
        RAISE EXCEPTION 'version % of adapter % is immutable', OLD.version, OLD.adapter_id;
    END IF;
    IF NEW.state <> OLD.state THEN
        IF (OLD.state, NEW.state) NOT IN (
            ('inspected', 'probed'), ('inspected', 'rejected'), ('probed', 'ready'), ('probed', 'rejected'),
            ('ready', 'retired'), ('retired', 'deleted'), ('rejected', 'deleted')) THEN
            RAISE EXCEPTION 'version % of adapter % cannot go from % to %',
                OLD.version, OLD.adapter_id, OLD.state, NEW.state;
        END IF;
        IF OLD.state = 'ready' AND EXISTS (SELECT FROM adapters a WHERE a.id = OLD.adapter_id
                                           AND a.current_version = OLD.version AND a.removed_at IS NULL) THEN
            RAISE EXCEPTION 'version % of adapter % is current', OLD.version, OLD.adapter_id;
        END IF;
        NEW.changed_at := now();
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER adapter_versions_are_kept BEFORE UPDATE ON adapter_versions
    FOR EACH ROW EXECUTE FUNCTION keep_adapter_version();

-- What is current is ready, whoever says so; and what was current before is remembered. Gateways that know no promotions
-- promote, too: theirs is a wish like any other.
CREATE FUNCTION keep_current_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.current_version IS NOT DISTINCT FROM OLD.current_version THEN
        RETURN NEW;
    END IF;
    IF NOT EXISTS (SELECT FROM adapter_versions v WHERE v.adapter_id = NEW.id AND v.version = NEW.current_version
                   AND v.state = 'ready') THEN
        RAISE EXCEPTION 'version % of adapter % is not ready', NEW.current_version, NEW.id;
    END IF;
    NEW.previous_version := OLD.current_version;
    IF NEW.current_promotion = OLD.current_promotion THEN
        NEW.last_promotion := OLD.last_promotion + 1;
        NEW.current_promotion := NEW.last_promotion;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER adapters_current_is_kept BEFORE UPDATE OF current_version ON adapters
    FOR EACH ROW EXECUTE FUNCTION keep_current_version();

-- Caches hold versions, too: what announces the adapter announces them.
CREATE FUNCTION announce_version_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE adapters SET current_version = current_version WHERE id = NEW.adapter_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER adapter_versions_changed AFTER UPDATE OF state ON adapter_versions
    FOR EACH ROW WHEN ((OLD.state = 'ready') <> (NEW.state = 'ready')) EXECUTE FUNCTION announce_version_change();

-- How content comes in, until it is a version or refused. size_bytes, sha256: as announced, NULL where nobody knows.
-- source: 'upload', 'folder', or the address it is fetched from. author: whom the audit log names.
-- updated_at: of its last sign of life, since whoever works on it may die. num_claims: how often a gateway has begun to
-- fetch it.
CREATE TABLE adapter_imports (
    id              text PRIMARY KEY,
    project_id      text NOT NULL REFERENCES projects (id),
    name            text NOT NULL,
    source          text NOT NULL,
    state           text NOT NULL CHECK (state IN ('receiving', 'fetching', 'uploaded', 'done', 'rejected', 'failed')),
    reason          text,
    size_bytes      bigint CHECK (size_bytes >= 0),
    sha256          text CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    received_bytes  bigint NOT NULL DEFAULT 0 CHECK (received_bytes >= 0),
    promote         boolean NOT NULL,
    num_claims      integer NOT NULL DEFAULT 0,
    author          jsonb NOT NULL,
    adapter_id      text,
    version         integer,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (adapter_id, version) REFERENCES adapter_versions (adapter_id, version),
    CHECK ((state = 'done') = (version IS NOT NULL))
);

CREATE INDEX adapter_imports_by_project ON adapter_imports (project_id, created_at, id);
CREATE INDEX adapter_imports_at_work ON adapter_imports (updated_at) WHERE state IN ('receiving', 'fetching', 'uploaded');

-- A tenant's own names of models. target_kind tells what they stand for.
CREATE TABLE model_aliases (
    id           text PRIMARY KEY,
    project_id   text NOT NULL REFERENCES projects (id),
    name         text NOT NULL,
    target_kind  text NOT NULL CHECK (target_kind IN ('version')),
    adapter_id   text NOT NULL,
    version      integer NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    moved_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, name),
    FOREIGN KEY (adapter_id, version) REFERENCES adapter_versions (adapter_id, version)
);

CREATE INDEX model_aliases_by_version ON model_aliases (adapter_id, version);

CREATE TRIGGER model_aliases_changed
    AFTER INSERT OR DELETE OR UPDATE ON model_aliases FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Projects of the same organization that may call another's adapter, under its name. project_id: of whom it is shared with.
CREATE TABLE adapter_shares (
    id          text PRIMARY KEY,
    adapter_id  text NOT NULL REFERENCES adapters (id),
    project_id  text NOT NULL REFERENCES projects (id),
    name        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (adapter_id, project_id),
    UNIQUE (project_id, name)
);

CREATE TRIGGER adapter_shares_changed
    AFTER INSERT OR DELETE OR UPDATE ON adapter_shares FOR EACH ROW EXECUTE FUNCTION announce_change();

-- What was refused or deleted takes no room.
CREATE OR REPLACE FUNCTION stored_bytes(the_organization text, the_project text) RETURNS bigint
    LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(size_bytes), 0)::bigint FROM (
        SELECT DISTINCT a.project_id, v.digest, v.size_bytes
        FROM projects p JOIN adapters a ON a.project_id = p.id AND a.removed_at IS NULL
            JOIN adapter_versions v ON v.adapter_id = a.id AND v.state NOT IN ('rejected', 'deleted')
        WHERE p.organization_id = the_organization AND (the_project IS NULL OR p.id = the_project)
    ) stored
$$;

-- Until now each version followed the one before it.
UPDATE adapters SET previous_version = current_version - 1 WHERE current_version > 1;
