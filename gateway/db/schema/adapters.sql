-- Base models, and the adapters of projects: versions, imports, aliases, shares and the watched folder.

-- Base models that this installation has served.
CREATE TABLE bases (
    -- The digest that engine.config.model_digest computes.
    digest      text PRIMARY KEY CHECK (digest ~ '^[0-9a-f]{64}$'),
    -- The model's name as people see it.
    name        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- A removed adapter keeps its row, since the ledger names it; its name is free again.
CREATE TABLE adapters (
    id                 text PRIMARY KEY,
    project_id         text NOT NULL REFERENCES projects (id),
    -- The base model that the adapter was made for; it answers under every pool of that base. A database from before
    -- bases were recorded has NULL here until a gateway that knows its base adopts the row; a new row never has NULL.
    base_digest        text REFERENCES bases (digest),
    name               text NOT NULL,
    -- NULL while no version was ever ready.
    current_version    integer CHECK (current_version >= 1),
    -- The version that was current before, for a rollback.
    previous_version   integer,
    -- The number of the latest request that some version become current, and of the request that current_version
    -- follows. A version that becomes ready late does not undo a later request.
    last_promotion     bigint NOT NULL DEFAULT 0,
    current_promotion  bigint NOT NULL DEFAULT 0,
    pinned             boolean NOT NULL DEFAULT false,
    -- Values for fields that a request leaves out.
    defaults           jsonb NOT NULL DEFAULT '{}',
    -- The class under which the price book lists the adapter; usage without an adapter has the class 'none'.
    price_class        text NOT NULL DEFAULT 'default' CHECK (price_class NOT IN ('', '*', 'none')),
    created_at         timestamptz NOT NULL DEFAULT now(),
    removed_at         timestamptz
);

CREATE UNIQUE INDEX adapters_by_name ON adapters (project_id, name) WHERE removed_at IS NULL;

CREATE TABLE adapter_versions (
    adapter_id  text NOT NULL REFERENCES adapters (id),
    version     integer NOT NULL CHECK (version >= 1),
    digest      text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),
    rank        integer NOT NULL CHECK (rank >= 1),
    size_bytes  bigint NOT NULL CHECK (size_bytes >= 0),
    state       text NOT NULL CHECK (state IN ('inspected', 'probed', 'ready', 'rejected', 'retired', 'deleted')),
    reason      text,
    source      text NOT NULL,
    -- The number of the request that this version become current once it is ready; NULL where nobody asked for that.
    promotion   bigint,
    -- What the inspection and the probe found.
    report      jsonb,
    probe       jsonb,
    -- The last sign of life of the gateway that probes the version, and how often a gateway has begun to probe it.
    claimed_at  timestamptz,
    num_probes  integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- When the state changed last.
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (adapter_id, version)
);

CREATE INDEX adapter_versions_by_digest ON adapter_versions (digest);
CREATE INDEX adapter_versions_to_probe ON adapter_versions (created_at) WHERE state IN ('inspected', 'probed');

ALTER TABLE adapters
    ADD FOREIGN KEY (id, current_version) REFERENCES adapter_versions (adapter_id, version)
        DEFERRABLE INITIALLY DEFERRED,
    ADD FOREIGN KEY (id, previous_version) REFERENCES adapter_versions (adapter_id, version)
        DEFERRABLE INITIALLY DEFERRED;

-- Content on its way in, until it is a version or refused.
CREATE TABLE adapter_imports (
    id              text PRIMARY KEY,
    project_id      text NOT NULL REFERENCES projects (id),
    name            text NOT NULL,
    -- The base model that the content was announced for; NULL where the adapter of this name tells, or the default base.
    base_digest     text REFERENCES bases (digest),
    -- 'upload', 'folder', or the address from which the content is fetched.
    source          text NOT NULL,
    state           text NOT NULL CHECK (state IN ('receiving', 'fetching', 'uploaded', 'done', 'rejected', 'failed')),
    reason          text,
    -- Size and digest as announced; NULL where nobody announced them.
    size_bytes      bigint CHECK (size_bytes >= 0),
    sha256          text CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    received_bytes  bigint NOT NULL DEFAULT 0 CHECK (received_bytes >= 0),
    promote         boolean NOT NULL,
    -- How often a gateway has begun to fetch the content.
    num_claims      integer NOT NULL DEFAULT 0,
    -- How far the inspection is; NULL before it began.
    inspection      text CHECK (inspection IN ('begun', 'passed')),
    -- When an import of a project whose uploads were paused may be fetched.
    wait_until      timestamptz,
    -- The author that the audit log names.
    author          jsonb NOT NULL,
    adapter_id      text,
    version         integer,
    created_at      timestamptz NOT NULL DEFAULT now(),
    -- The last sign of life of the gateway that works on the import: that gateway may die.
    updated_at      timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (adapter_id, version) REFERENCES adapter_versions (adapter_id, version),
    CHECK ((state = 'done') = (version IS NOT NULL))
);

CREATE INDEX adapter_imports_by_project ON adapter_imports (project_id, created_at, id);
CREATE INDEX adapter_imports_at_work ON adapter_imports (updated_at)
    WHERE state IN ('receiving', 'fetching', 'uploaded');
CREATE INDEX adapter_imports_over ON adapter_imports (project_id, updated_at)
    WHERE state IN ('done', 'rejected', 'failed');

-- A project's own names of models.
CREATE TABLE model_aliases (
    id             text PRIMARY KEY,
    project_id     text NOT NULL REFERENCES projects (id),
    name           text NOT NULL,
    -- The kind of thing that the name stands for: a version of an adapter, the base model of a pool, an experiment, or a
    -- routing policy.
    target_kind    text NOT NULL,
    adapter_id     text,
    version        integer,
    created_at     timestamptz NOT NULL DEFAULT now(),
    moved_at       timestamptz NOT NULL DEFAULT now(),
    -- Of a version: the pool that served the arm of an experiment that was chosen, if the name was one's.
    pool_id        text,
    experiment_id  text,
    -- The defaults and their mode that an experiment's arm had, which the name keeps once the arm was chosen.
    treatment      jsonb,
    route_id       text,
    UNIQUE (project_id, name),
    FOREIGN KEY (adapter_id, version) REFERENCES adapter_versions (adapter_id, version),
    CONSTRAINT model_aliases_target_kind_check CHECK (target_kind IN ('version', 'pool', 'experiment', 'route')),
    CONSTRAINT model_aliases_target_check CHECK (
        (target_kind = 'version') = (adapter_id IS NOT NULL) AND (adapter_id IS NULL) = (version IS NULL)
        AND CASE target_kind WHEN 'pool' THEN pool_id IS NOT NULL WHEN 'version' THEN true ELSE pool_id IS NULL END
        AND (target_kind = 'experiment') = (experiment_id IS NOT NULL)
        AND (target_kind = 'route') = (route_id IS NOT NULL))
);

CREATE INDEX model_aliases_by_version ON model_aliases (adapter_id, version);

-- Projects of the same organization that may call another project's adapter, under the adapter's name.
CREATE TABLE adapter_shares (
    id          text PRIMARY KEY,
    adapter_id  text NOT NULL REFERENCES adapters (id),
    -- The project that the adapter is shared with.
    project_id  text NOT NULL REFERENCES projects (id),
    name        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (adapter_id, project_id),
    UNIQUE (project_id, name)
);

-- What was taken from the watched folder: files that have not changed are not taken again, also after a restart.
CREATE TABLE watched_adapters (
    project_id   text NOT NULL REFERENCES projects (id),
    name         text NOT NULL,
    -- The fingerprint of the files' bytes, or of names and sizes where the files are not read.
    fingerprint  text NOT NULL,
    taken_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

-- The project that a tenant's watched folder belongs to, settled when the folder is first taken from: another project
-- that comes to have the folder's name, of another organization perhaps, gets nothing.
CREATE TABLE watched_tenants (
    folder      text PRIMARY KEY,
    project_id  text NOT NULL REFERENCES projects (id),
    bound_at    timestamptz NOT NULL DEFAULT now()
);
