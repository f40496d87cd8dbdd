-- Batches: files of requests that run in what interactive work leaves free, each line once, within a day.
CREATE TABLE batches (
    project_id       text NOT NULL REFERENCES projects (id),
    id               text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    -- The key that made the batch: its lines run with the rights that the key has when they run.
    api_key_id       text NOT NULL REFERENCES api_keys (id),
    endpoint         text NOT NULL,
    input_file_id    text NOT NULL,
    -- Ids of files that are made at the end, if there is something to put into them.
    output_file_id   text NOT NULL,
    error_file_id    text NOT NULL,
    has_output       boolean NOT NULL DEFAULT false,
    has_errors       boolean NOT NULL DEFAULT false,
    -- Seconds after which these expire.
    keep_seconds     bigint,
    status           text NOT NULL DEFAULT 'validating'
                     CHECK (status IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired',
                                       'cancelling', 'cancelled')),
    -- What a batch that is finalizing becomes.
    ending           text CHECK (ending IN ('completed', 'expired')),
    expires_at       timestamptz NOT NULL,
    in_progress_at   timestamptz,
    finalizing_at    timestamptz,
    cancelling_at    timestamptz,
    -- When it was completed, failed, expired or cancelled.
    ended_at         timestamptz,
    num_total        integer NOT NULL DEFAULT 0,
    num_completed    integer NOT NULL DEFAULT 0,
    num_failed       integer NOT NULL DEFAULT 0,
    input_tokens     bigint NOT NULL DEFAULT 0,
    cached_tokens    bigint NOT NULL DEFAULT 0,
    output_tokens    bigint NOT NULL DEFAULT 0,
    -- Metadata, and what was wrong with the input file.
    content_key      text NOT NULL,
    sealed_metadata  bytea NOT NULL,
    sealed_errors    bytea,
    -- The gateway that works on the batch, until when nobody else may, and how often that changed hands.
    gateway          text,
    leased_until     timestamptz NOT NULL DEFAULT '-infinity',
    fence            bigint NOT NULL DEFAULT 0,
    -- How many lines failed for each reason.
    failures         jsonb NOT NULL DEFAULT '{}',
    -- The pace of the last minute, and when results were counted last.
    lines_per_s      double precision NOT NULL DEFAULT 0,
    counted_at       timestamptz,
    -- The lines without a result while the batch is in progress, by the pool that they name; '' for those that name none.
    open_lines       jsonb NOT NULL DEFAULT '{}',
    -- The error for which no line could run when lines were begun last, such as a limit of the day; null after a result.
    waits_code       text,
    waits_message    text,
    PRIMARY KEY (project_id, id)
);

CREATE INDEX batches_by_time ON batches (project_id, created_at, id);
CREATE INDEX batches_by_key ON batches (api_key_id);
CREATE INDEX batches_by_content_key ON batches (content_key);
CREATE INDEX batches_open ON batches (leased_until) WHERE ended_at IS NULL;
CREATE INDEX batches_ended ON batches (ended_at) WHERE ended_at IS NOT NULL;

-- The lines of batches that have not ended. The result of a line, as it stands in the output or the error file, comes in
-- one transaction with the counts of its batch.
CREATE TABLE batch_lines (
    project_id     text NOT NULL,
    batch_id       text NOT NULL,
    number         integer NOT NULL,
    first_byte     bigint NOT NULL,
    num_bytes      integer NOT NULL,
    model          text NOT NULL,
    state          text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'completed', 'failed')),
    -- How often the line was begun, and ended by a fault of ours.
    attempt        integer NOT NULL DEFAULT 0,
    num_faults     integer NOT NULL DEFAULT 0,
    -- When it was begun first: the rows of all its attempts in the ledger have this time.
    begun_at       timestamptz,
    content_key    text,
    sealed_result  bytea,
    PRIMARY KEY (project_id, batch_id, number),
    FOREIGN KEY (project_id, batch_id) REFERENCES batches ON DELETE CASCADE
);

CREATE INDEX batch_lines_open ON batch_lines (project_id, batch_id, number) WHERE state IN ('waiting', 'running');
CREATE INDEX batch_lines_by_content_key ON batch_lines (content_key) WHERE content_key IS NOT NULL;

-- Lines that were begun and have no result although their batch has ended, or that failed after they had been begun
-- before: whatever is told of their usage, be it long after the end, nobody is billed for it.
CREATE TABLE disowned_lines (
    request_id  text PRIMARY KEY,
    project_id  text NOT NULL,
    batch_id    text NOT NULL,
    FOREIGN KEY (project_id, batch_id) REFERENCES batches ON DELETE CASCADE
);

CREATE INDEX disowned_lines_by_batch ON disowned_lines (project_id, batch_id);

-- The work that projects with batches got at each pool, on a scale that all share (gateway/domain/batches/turns.py): what
-- each got since it was lifted to the one that had got least. Gateways add what they charged; an old row says nothing.
CREATE TABLE batch_turns (
    pool        text NOT NULL,
    project_id  text NOT NULL REFERENCES projects (id),
    lifted_to   double precision NOT NULL,
    work        double precision NOT NULL,
    -- When a line of the project waited last.
    asked_at    timestamptz NOT NULL,
    PRIMARY KEY (pool, project_id)
);

CREATE INDEX batch_turns_by_project ON batch_turns (project_id);

ALTER TABLE batches
    ALTER COLUMN sealed_metadata SET STORAGE EXTERNAL,
    ALTER COLUMN sealed_errors SET STORAGE EXTERNAL;
ALTER TABLE batch_lines ALTER COLUMN sealed_result SET STORAGE EXTERNAL;
