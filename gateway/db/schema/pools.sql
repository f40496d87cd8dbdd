-- Pools of engines: what each serves, who may use it, the hosts that engines run on, and the replicas there.

CREATE TABLE pools (
    id               text PRIMARY KEY,
    -- The organization whose operators manage the pool.
    organization_id  text NOT NULL REFERENCES organizations (id),
    -- The public name, by which requests ask for the base model. A removed pool gives it back.
    name             text NOT NULL CHECK (name <> '' AND name !~ '[:@[:space:]]'),
    -- How many replicas shall run.
    num_replicas     integer NOT NULL CHECK (num_replicas BETWEEN 0 AND 1000),
    -- Who may use the pool: all projects of the installation, or those that pool_grants lists.
    access           text NOT NULL DEFAULT 'all' CHECK (access IN ('all', 'listed')),
    -- The revision that serves; NULL before the first one is ready.
    revision         integer,
    -- The revision that is to serve; another one than revision while a change is under way.
    wanted_revision  integer NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    removed_at       timestamptz,
    -- The labels that a host must have for replicas to start there.
    placement        jsonb NOT NULL DEFAULT '{}',
    -- The values that labels of a host must not have, by the labels' names.
    exclusion        jsonb NOT NULL DEFAULT '{}'
);

CREATE UNIQUE INDEX pools_by_name ON pools (name) WHERE removed_at IS NULL;
CREATE INDEX pools_by_organization ON pools (organization_id, created_at, id) WHERE removed_at IS NULL;

-- What a pool serves, or served: a base model and the settings of its engines. A row's model and settings never change.
CREATE TABLE pool_revisions (
    pool_id      text NOT NULL REFERENCES pools (id),
    revision     integer NOT NULL CHECK (revision >= 1),
    -- The model as the operator named it: `demo`, a folder, a .gguf file, or a repository id of the hub.
    model        text NOT NULL,
    -- Engine settings that differ from those of the hosts, by the names of EngineConfig; or those of the driver.
    settings     jsonb NOT NULL DEFAULT '{}',
    -- The folder of the prepared model, the same on each host, and the digest of the base; NULL until it is prepared.
    -- A model of which only a server of another maker knows the files has a digest alone.
    folder       text,
    base_digest  text REFERENCES bases (digest),
    -- Whether adapters of the present base that do not fit this one may be left behind.
    allow_unfit_adapters  boolean NOT NULL DEFAULT false,
    -- Bytes that a replica takes by the host's estimate; NULL until it is prepared.
    num_bytes    bigint CHECK (num_bytes >= 0),
    state        text NOT NULL DEFAULT 'preparing' CHECK (state IN ('preparing', 'prepared', 'failed', 'retired')),
    -- Why it failed, or how far its preparation is.
    why          text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    changed_at   timestamptz NOT NULL DEFAULT now(),
    -- What speaks to the replicas: `lorikeet` to our own engines, the others to servers of other makers.
    driver       text NOT NULL DEFAULT 'lorikeet' CHECK (driver ~ '^[a-z][a-z0-9-]{0,31}$'),
    -- Whether agents start the servers of another maker; engines of our own they always start.
    starts_servers  boolean NOT NULL DEFAULT false,
    -- The digests of the adapters with which servers are started that take none later.
    adapters     text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (pool_id, revision),
    CHECK ((folder IS NULL) = (base_digest IS NULL) OR driver <> 'lorikeet')
);

ALTER TABLE pools ADD CONSTRAINT pools_revision FOREIGN KEY (id, revision)
    REFERENCES pool_revisions (pool_id, revision) DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE pools ADD CONSTRAINT pools_wanted_revision FOREIGN KEY (id, wanted_revision)
    REFERENCES pool_revisions (pool_id, revision) DEFERRABLE INITIALLY DEFERRED;

-- The key that the servers of a pool of another maker ask for, encrypted by the gateways.
CREATE TABLE backend_keys (
    pool_id      text PRIMARY KEY REFERENCES pools (id),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    -- The last characters of the key.
    hint         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX backend_keys_by_content_key ON backend_keys (content_key);

-- Keys that projects bring for the servers of a pool of another maker, encrypted by the gateways: used for the requests of
-- their project alone.
CREATE TABLE provider_keys (
    id           text PRIMARY KEY,
    project_id   text NOT NULL REFERENCES projects (id),
    pool_id      text NOT NULL REFERENCES pools (id),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    -- The last characters of the key.
    hint         text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    -- When the present key took the place of the one before.
    changed_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, pool_id)
);

CREATE INDEX provider_keys_by_pool ON provider_keys (pool_id);
CREATE INDEX provider_keys_by_content_key ON provider_keys (content_key);

-- Organizations and projects that may use a pool whose access is 'listed'.
CREATE TABLE pool_grants (
    pool_id          text NOT NULL REFERENCES pools (id) ON DELETE CASCADE,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    -- NULL: all projects of the organization.
    project_id       text,
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id) ON DELETE CASCADE,
    UNIQUE NULLS NOT DISTINCT (pool_id, organization_id, project_id)
);

-- Pools whose number of replicas follows their load: the bounds, and what the agents that decide have to remember.
CREATE TABLE pool_scaling (
    pool_id       text PRIMARY KEY REFERENCES pools (id),
    min_replicas  integer NOT NULL CHECK (min_replicas BETWEEN 0 AND 1000),
    max_replicas  integer NOT NULL CHECK (max_replicas BETWEEN 1 AND 1000),
    -- Seconds for which a replica must not have been needed before it goes.
    down_after_s  integer NOT NULL CHECK (down_after_s BETWEEN 10 AND 86400),
    -- The last change of the number of replicas, and its reason.
    decided_at    timestamptz,
    why           text NOT NULL DEFAULT '',
    -- Seconds that the first replica of a pool without any took to become ready, last time.
    start_s       double precision,
    memory        jsonb NOT NULL DEFAULT 'null',
    CHECK (min_replicas <= max_replicas)
);

-- The load of these pools as each gateway saw it last. Worth nothing after seconds, and lost when the server dies.
CREATE UNLOGGED TABLE pool_loads (
    pool_id     text NOT NULL,
    gateway_id  text NOT NULL,
    at          timestamptz NOT NULL,
    load        jsonb NOT NULL,
    PRIMARY KEY (pool_id, gateway_id)
);

-- Machines on which an agent starts engines. The agent whose generation the row has holds the lease; an agent that finds
-- another generation has been replaced and changes nothing any more.
CREATE TABLE hosts (
    id               text PRIMARY KEY,
    name             text NOT NULL,
    generation       bigint NOT NULL DEFAULT 0,
    lease_until      timestamptz NOT NULL DEFAULT '-infinity',
    num_processors   integer NOT NULL DEFAULT 0,
    memory_bytes     bigint NOT NULL DEFAULT 0,
    -- The memory of each accelerator in bytes, in the order of their indices.
    gpu_bytes        bigint[] NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT now(),
    -- The drivers whose servers the host's agent can start, since it found their programs.
    programs         text[] NOT NULL DEFAULT '{}',
    -- The public key of the host, which its engines and gateways prove over TCP; '{}' for one without.
    public_keys      text[] NOT NULL DEFAULT '{}',
    -- What operators say of the host.
    labels           jsonb NOT NULL DEFAULT '{}',
    -- A host from which replicas go, and on which none starts.
    is_drained       boolean NOT NULL DEFAULT false,
    -- A removed host's keys count no more, and its agent ends.
    removed_at       timestamptz,
    -- The version of the agent that claimed the host last; NULL before the first.
    version          text,
    -- What chooses the machines of its engines; not 'local' for a host that stands for a whole cluster.
    placement        text NOT NULL DEFAULT 'local' CHECK (placement IN ('local', 'ray')),
    -- The protocol between gateways and engines that the agent speaks, such as 3.1.
    protocol         text,
    -- The machines of such a cluster, as its agent saw them last.
    nodes            jsonb NOT NULL DEFAULT '[]'
);

-- Hosts that could not prepare the model of a revision, and when each is tried again.
CREATE TABLE host_failures (
    host_id       text NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    pool_id       text NOT NULL,
    revision      integer NOT NULL,
    why           text NOT NULL,
    -- Failures in a row.
    num_failures  integer NOT NULL DEFAULT 1,
    failed_at     timestamptz NOT NULL DEFAULT now(),
    retry_at      timestamptz NOT NULL,
    PRIMARY KEY (host_id, pool_id, revision),
    FOREIGN KEY (pool_id, revision) REFERENCES pool_revisions (pool_id, revision) ON DELETE CASCADE
);

-- Permissions to join as a host, of which each is good for one host and an hour.
CREATE TABLE host_tokens (
    id               text PRIMARY KEY,
    -- The SHA-256 of the token, which is shown once.
    digest           bytea NOT NULL UNIQUE,
    organization_id  text NOT NULL REFERENCES organizations (id),
    -- The name and the labels that the host gets; without a name, its own.
    name             text,
    labels           jsonb NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL,
    host_id          text REFERENCES hosts (id)
);

CREATE INDEX host_tokens_by_expiry ON host_tokens (expires_at);

-- Engine processes. A replica keeps its id over restarts; each start has a generation of its own.
CREATE TABLE replicas (
    id            text PRIMARY KEY,
    pool_id       text NOT NULL,
    revision      integer NOT NULL,
    -- The host whose agent runs the engine; NULL for an engine that is run by somebody else and only connected to.
    host_id       text REFERENCES hosts (id),
    -- The ZeroMQ endpoint, or the URL of a server of another maker; NULL until the engine was started once.
    address       text,
    -- The accelerator's index on its host; NULL where it computes on processors.
    gpu           integer,
    state         text NOT NULL DEFAULT 'starting'
                  CHECK (state IN ('starting', 'loading', 'ready', 'draining', 'stopped', 'failed')),
    generation    bigint NOT NULL DEFAULT 0,
    -- Why it is in this state, or how far it is.
    why           text NOT NULL DEFAULT '',
    since         timestamptz NOT NULL DEFAULT now(),
    -- Failures in a row, and when the next start is due after one.
    num_failures  integer NOT NULL DEFAULT 0,
    retry_at      timestamptz,
    -- Whether another replica shall take its place, ready before this one drains where both fit.
    replace       boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- The public key that the engine proves where its address is on TCP.
    public_key    text,
    -- The version of the engine and the protocol that it speaks, as it told its agent; NULL where it did not.
    version       text,
    protocol      text,
    -- Since when it waits for room on the machines of a cluster, which others have.
    full_since    timestamptz,
    FOREIGN KEY (pool_id, revision) REFERENCES pool_revisions (pool_id, revision)
);

CREATE INDEX replicas_by_pool ON replicas (pool_id, revision) WHERE state <> 'stopped';
CREATE INDEX replicas_by_host ON replicas (host_id) WHERE state <> 'stopped';
CREATE INDEX replicas_stopped ON replicas (since) WHERE state = 'stopped';

ALTER TABLE model_aliases ADD FOREIGN KEY (pool_id) REFERENCES pools (id);
