-- Experiments of projects, the units that they assign, what the units did, and the sums that results are made of.
--
-- A unit is known by a digest under a secret key of its project (`assignment.unit_digest`), never by its name, and no row
-- of the ledger has the digest: rows here can be removed, rows of the ledger cannot.

-- The secret of each project under which units are digested, encrypted by the gateways.
CREATE TABLE experiment_keys (
    project_id   text PRIMARY KEY REFERENCES projects (id),
    content_key  text NOT NULL,
    sealed       bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX experiment_keys_by_content_key ON experiment_keys (content_key);

-- Experiments of one layer have no unit in common: each owns slots of the layer.
CREATE TABLE experiment_layers (
    project_id  text NOT NULL REFERENCES projects (id),
    name        text NOT NULL,
    seed        bytea NOT NULL CHECK (octet_length(seed) = 32),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

-- Units that take part in nothing, for comparison. size: in parts of 10,000.
CREATE TABLE experiment_holdouts (
    project_id  text NOT NULL REFERENCES projects (id),
    name        text NOT NULL,
    seed        bytea NOT NULL CHECK (octet_length(seed) = 32),
    size        integer NOT NULL CHECK (size BETWEEN 1 AND 10000),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

-- Metrics that come as feedback. Values are integers: 0 and 1 of a boolean, millionths of a number or a label.
CREATE TABLE feedback_metrics (
    project_id   text NOT NULL REFERENCES projects (id),
    name         text NOT NULL,
    type         text NOT NULL CHECK (type IN ('boolean', 'number', 'label')),
    -- Which way is better.
    goal         text NOT NULL CHECK (goal IN ('increase', 'decrease')),
    -- How a unit's votes make its value: 'mean' is their sum, 'ratio' their sum over their number.
    kind         text NOT NULL CHECK (kind IN ('mean', 'ratio')),
    least        bigint,
    most         bigint,
    -- The value of each label, in millionths.
    labels       jsonb,
    description  text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name),
    CHECK ((type = 'label') = (labels IS NOT NULL))
);

CREATE TABLE experiments (
    id            text PRIMARY KEY,
    project_id    text NOT NULL REFERENCES projects (id),
    name          text NOT NULL,
    -- The model string by which requests name the experiment.
    model         text NOT NULL,
    state         text NOT NULL CHECK (state IN ('draft', 'running', 'paused', 'stopped', 'decided', 'archived')),
    -- The definition as the tenant wrote it (`definition.Experiment`), and the number of its latest change.
    definition    jsonb NOT NULL,
    version       integer NOT NULL DEFAULT 1 CHECK (version >= 1),
    layer         text NOT NULL,
    holdout       text,
    -- The split (`assignment.Split`): NULL before the start.
    seed          bytea NOT NULL CHECK (octet_length(seed) = 32),
    slots         bytea CHECK (octet_length(slots) = 10000),
    tables        bytea[],
    ended         smallint[] NOT NULL DEFAULT '{}',
    -- False while weights change: units that are not exposed yet get the control.
    enrolling     boolean NOT NULL DEFAULT true,
    -- The weights that the next epoch will have, and since when enrolment is closed for them.
    next_weights  integer[],
    closed_at     timestamptz,
    -- When the list of units that keep an earlier epoch, which gateways read, changed last; NULL while there is none.
    exposed_at    timestamptz,
    -- Why it was paused or stopped, where it was not a person who did: a guardrail and what it found, as JSON.
    why           jsonb,
    -- What guardrails found before a person started the experiment again: it does not pause for that any more.
    overruled     jsonb NOT NULL DEFAULT '[]',
    decided_arm   smallint,
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    stopped_at    timestamptz,
    decided_at    timestamptz,
    changed_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, name),
    UNIQUE (project_id, id),
    FOREIGN KEY (project_id, layer) REFERENCES experiment_layers (project_id, name),
    FOREIGN KEY (project_id, holdout) REFERENCES experiment_holdouts (project_id, name),
    CHECK ((state = 'draft') = (started_at IS NULL)),
    CHECK ((started_at IS NULL) = (slots IS NULL)),
    CHECK ((slots IS NULL) = (tables IS NULL)),
    CHECK ((next_weights IS NULL) = (closed_at IS NULL))
);

CREATE INDEX experiments_to_reweight ON experiments (closed_at) WHERE next_weights IS NOT NULL;
CREATE UNIQUE INDEX experiments_by_model ON experiments (project_id, model) WHERE state IN ('running', 'paused', 'stopped');
CREATE INDEX experiments_by_project ON experiments (project_id, created_at, id);

-- What each arm serves, as it was when the experiment started: an alias that moves does not move an arm.
CREATE TABLE experiment_arms (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    -- 255: the shadow arm.
    arm            smallint NOT NULL CHECK (arm >= 0),
    pool_id        text NOT NULL REFERENCES pools (id),
    -- NULL: the base model of the pool.
    adapter_id     text,
    version        integer,
    -- The defaults and their mode that the arm's target had; NULL: those of the definition.
    treatment      jsonb,
    PRIMARY KEY (experiment_id, arm),
    FOREIGN KEY (adapter_id, version) REFERENCES adapter_versions (adapter_id, version),
    CHECK ((adapter_id IS NULL) = (version IS NULL))
);

CREATE INDEX experiment_arms_by_version ON experiment_arms (adapter_id, version) WHERE adapter_id IS NOT NULL;

-- Units that were exposed. A gateway notes a unit within a second of its first request, before the ledger has the request:
-- such a row has no state yet.
CREATE TABLE experiment_units (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    digest         bytea NOT NULL CHECK (octet_length(digest) = 16),
    epoch          smallint NOT NULL CHECK (epoch >= 1),
    arm            smallint NOT NULL CHECK (arm >= 0),
    -- When its first request was exposed, by the clock of the gateway that says so.
    noted_at       timestamptz NOT NULL DEFAULT now(),
    -- What is known of the unit, a `units.UnitState` in MessagePack, and when its outcome window ends.
    state          bytea,
    closes_at      timestamptz,
    -- Whether its outcomes are in the sums.
    is_closed      boolean NOT NULL DEFAULT false,
    -- Its requests within the window.
    num_requests   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (experiment_id, digest),
    CHECK ((state IS NULL) = (closes_at IS NULL)),
    CHECK (NOT is_closed OR state IS NOT NULL)
);

CREATE INDEX experiment_units_by_digest ON experiment_units (digest);
CREATE INDEX experiment_units_to_close ON experiment_units (closes_at) WHERE NOT is_closed AND closes_at IS NOT NULL;
CREATE INDEX experiment_units_noted ON experiment_units (experiment_id, noted_at) WHERE state IS NULL;
CREATE INDEX experiment_units_busy ON experiment_units (experiment_id, num_requests) WHERE num_requests >= 100;

-- Gateways that note exposures. New weights wait until each has written all that it noted before enrolment closed.
CREATE TABLE experiment_gateways (
    id             text PRIMARY KEY,
    -- The number of the last batch of notes that is written: one that is sent again is not written twice.
    batch          bigint NOT NULL,
    -- All that the gateway noted before this instant is written.
    noted_until    timestamptz NOT NULL
);

-- Which unit a request was of, from which a unit's state can be counted anew, and to which feedback refers.
CREATE TABLE experiment_requests (
    request_id     text PRIMARY KEY,
    project_id     text NOT NULL REFERENCES projects (id),
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    digest         bytea NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    is_delivered   boolean NOT NULL,
    -- How many requests alike were refused; 0: the request ran, and the ledger has its rows.
    num_refused    integer NOT NULL DEFAULT 0 CHECK (num_refused >= 0),
    created_at     timestamptz NOT NULL,
    -- What was known of the request before its arm was: NULL where a gateway before segments wrote the row.
    api_key_id     text,
    endpoint       text,
    stream         boolean,
    service_tier   text,
    -- The journal of the gateway that had the request.
    gateway        text,
    -- All of them, or none.
    CHECK (num_nonnulls(api_key_id, endpoint, stream, service_tier, gateway) IN (0, 5))
);

CREATE INDEX experiment_requests_by_unit ON experiment_requests (experiment_id, digest, created_at);
CREATE INDEX experiment_requests_by_time ON experiment_requests (experiment_id, created_at);

-- What waits to be added to units and sums. The transaction that deletes a row here adds it.
CREATE TABLE experiment_events (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    experiment_id      text NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('usage', 'refusal', 'feedback')),
    -- Of usage and refusals.
    request_id         text,
    -- Of feedback.
    feedback_id        text,
    -- Of usage: the row of the ledger.
    attempt            integer,
    revision           integer,
    finish_reason      text,
    prompt_tokens      bigint,
    completion_tokens  bigint,
    cost_nanos         bigint,
    queue_ms           double precision,
    prefill_ms         double precision,
    decode_ms          double precision,
    ttft_ms            double precision,
    latency_ms         double precision,
    created_at         timestamptz NOT NULL,
    queued_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX experiment_events_by_request ON experiment_events (request_id) WHERE request_id IS NOT NULL;

-- Units by the day of their first exposure, in UTC.
CREATE TABLE experiment_days (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    day            date NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    num_units      bigint NOT NULL,
    -- Those that got the whole treatment with each of their requests.
    num_delivered  bigint NOT NULL,
    -- Requests of these units within their windows.
    num_requests   bigint NOT NULL,
    PRIMARY KEY (experiment_id, day, epoch, arm)
);

-- Sums over units (`sums.Sums`), by the day on which each unit's window ended, or of its first exposure.
CREATE TABLE experiment_sums (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    day            date NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    x              numeric NOT NULL,
    xx             numeric NOT NULL,
    xy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, day, epoch, arm, metric)
);

-- How many units have their time of a metric in each bucket (`quantiles.bucket_of`).
CREATE TABLE experiment_times (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    day            date NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    bucket         smallint NOT NULL,
    num_units      bigint NOT NULL,
    PRIMARY KEY (experiment_id, day, epoch, arm, metric, bucket)
);

-- The sums of all days together, which results read: their rows do not grow with the days. Equal to experiment_sums.
CREATE TABLE experiment_totals (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    x              numeric NOT NULL,
    xx             numeric NOT NULL,
    xy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, epoch, arm, metric)
);

-- The units in each bucket of all days together, which results read. Equal to experiment_times.
CREATE TABLE experiment_time_totals (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    bucket         smallint NOT NULL,
    num_units      bigint NOT NULL,
    PRIMARY KEY (experiment_id, epoch, arm, metric, bucket)
);

-- Sums over units whose windows ended, of what each did on one day since its first exposure: 0 for the first 24 hours.
-- A unit that did nothing on such a day is not in the row of that day.
CREATE TABLE experiment_ages (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    age            smallint NOT NULL CHECK (age >= 0),
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, epoch, arm, metric, age)
);

-- Units by the segments of their first request, over all days. The values that have a row are those that are counted
-- apart (`segment_values.MAX_VALUES` of each kind at most); others are counted as 'other'.
CREATE TABLE experiment_segments (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('api_key', 'endpoint', 'stream', 'service_tier', 'gateway')),
    value          text NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    num_units      bigint NOT NULL,
    num_delivered  bigint NOT NULL,
    num_requests   bigint NOT NULL,
    PRIMARY KEY (experiment_id, kind, value, epoch, arm)
);

-- Sums over the units of each segment (`sums.Sums`), over all days.
CREATE TABLE experiment_segment_sums (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    kind           text NOT NULL,
    value          text NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    x              numeric NOT NULL,
    xx             numeric NOT NULL,
    xy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, kind, value, epoch, arm, metric)
);

-- Requests that are not analysed, by the reason why they got their arm (`assignment.Reason`), and copies of requests for
-- the shadow arm by what became of them: 'shadow.' and a `shadowing.Outcome`.
CREATE TABLE experiment_reasons (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    day            date NOT NULL,
    reason         text NOT NULL,
    num_requests   bigint NOT NULL,
    PRIMARY KEY (experiment_id, day, reason)
);

-- Results as they were shown, or as they were when the state changed: what was seen when can be told later.
CREATE TABLE experiment_looks (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    looked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    version        integer NOT NULL,
    results        jsonb NOT NULL,
    PRIMARY KEY (experiment_id, looked_at)
);

-- Votes about requests, or about units. Of several by one source about one thing, the latest one counts.
CREATE TABLE feedback (
    id             text PRIMARY KEY,
    project_id     text NOT NULL REFERENCES projects (id),
    request_id     text,
    digest         bytea,
    metric         text NOT NULL,
    source         text NOT NULL CHECK (source IN ('user', 'judge', 'code', 'human')),
    value          bigint NOT NULL,
    label          text,
    -- The digest of what the vote says.
    fingerprint    bytea NOT NULL,
    -- What the vote says in words, encrypted.
    content_key    text,
    sealed_comment bytea,
    occurred_at    timestamptz NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A vote that was withdrawn stays until the sums do not have it any more.
    withdrawn_at   timestamptz,
    CHECK ((request_id IS NULL) <> (digest IS NULL)),
    CHECK ((content_key IS NULL) = (sealed_comment IS NULL)),
    UNIQUE NULLS NOT DISTINCT (project_id, request_id, digest, metric, source),
    FOREIGN KEY (project_id, metric) REFERENCES feedback_metrics (project_id, name)
);

CREATE INDEX feedback_by_request ON feedback (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX feedback_by_digest ON feedback (project_id, digest) WHERE digest IS NOT NULL;
CREATE INDEX feedback_by_time ON feedback (project_id, received_at, id);
CREATE INDEX feedback_withdrawn ON feedback (withdrawn_at) WHERE withdrawn_at IS NOT NULL;
CREATE INDEX feedback_by_content_key ON feedback (content_key) WHERE content_key IS NOT NULL;

-- Ids that clients gave their votes, so that a vote that is sent again is told from another one, also after later ones.
CREATE TABLE feedback_ids (
    project_id    text NOT NULL REFERENCES projects (id),
    -- The digest of the id, which may say who voted.
    client_id     bytea NOT NULL CHECK (octet_length(client_id) = 16),
    fingerprint   bytea NOT NULL,
    -- What was answered: NULL only within the transaction that makes the row.
    feedback_id   text,
    replaced      boolean,
    received_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (project_id, client_id)
);

CREATE INDEX feedback_ids_by_time ON feedback_ids (received_at);

-- The vote that the sums of an experiment have of each feedback: the bookkeeper adds what the feedback differs by.
CREATE TABLE feedback_counted (
    feedback_id    text NOT NULL REFERENCES feedback (id) ON DELETE CASCADE,
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    digest         bytea NOT NULL,
    value          bigint NOT NULL,
    occurred_at    timestamptz NOT NULL,
    PRIMARY KEY (feedback_id, experiment_id)
);

CREATE INDEX feedback_counted_by_unit ON feedback_counted (experiment_id, digest);

ALTER TABLE model_aliases ADD FOREIGN KEY (project_id, experiment_id) REFERENCES experiments (project_id, id);
