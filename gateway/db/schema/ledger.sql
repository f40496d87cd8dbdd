-- The ledger of usage, partitioned by day; the sums made of it; journals and engines, against which it is checked.
--
-- `ledger` is the only table that lists the columns of a usage row. A gateway sends its events as JSON objects with these
-- names (gateway/db/ledger/usage.py), and functions pass whole rows of the type `ledger` on, so that no statement repeats them.

-- Append only. Revision 0 is the row of an attempt; a later revision is the difference to a better count that came late.
-- No foreign keys: a row must be writable whatever became of the things that it names.
CREATE TABLE ledger (
    request_id           text NOT NULL,
    attempt              integer NOT NULL,
    revision             integer NOT NULL,
    -- An adjustment is an operator's: cost without tokens, with the reason, and what it corrects, if anything.
    kind                 text NOT NULL CHECK (kind IN ('usage', 'adjustment')),
    organization_id      text NOT NULL,
    project_id           text NOT NULL,
    api_key_id           text NOT NULL,
    endpoint             text NOT NULL,
    model                text NOT NULL,
    adapter_id           text,
    adapter_version      integer,
    adapter_digest       text,
    adapter_class        text NOT NULL,
    service_tier         text NOT NULL,
    stream               boolean NOT NULL,
    prompt_tokens        bigint NOT NULL CHECK (prompt_tokens >= 0 OR revision > 0),
    cached_tokens        bigint NOT NULL CHECK (cached_tokens >= 0 OR revision > 0),
    completion_tokens    bigint NOT NULL CHECK (completion_tokens >= 0 OR revision > 0),
    discarded_tokens     bigint NOT NULL CHECK (discarded_tokens >= 0 OR revision > 0),
    finish_reason        text NOT NULL,
    queue_ms             double precision NOT NULL,
    prefill_ms           double precision NOT NULL,
    decode_ms            double precision NOT NULL,
    ttft_ms              double precision,
    latency_ms           double precision,
    adapter_load_bytes   bigint NOT NULL,
    -- The instant in the meter tag, which travels with the attempt unchanged: every copy of the attempt has the same key.
    created_at           timestamptz NOT NULL,
    finished_at          timestamptz NOT NULL,
    -- The month in which the row is billed: the month of created_at or, where that was closed before the row came, the
    -- first open one. In the latter case corrects_period is the month of created_at.
    period               date NOT NULL,
    corrects_period      date,
    corrects_request_id  text,
    reason               text,
    -- NULL: there were no prices.
    price_version        integer,
    -- cost_nanos is the sum of the three kinds, except for adjustments, which have only the sum.
    input_cost_nanos     bigint NOT NULL,
    cached_cost_nanos    bigint NOT NULL,
    output_cost_nanos    bigint NOT NULL,
    cost_nanos           bigint NOT NULL,
    -- The cost without the project's discount.
    list_cost_nanos      bigint NOT NULL,
    written_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The experiment that the request's model string named, and the arm that answered, 255 being the shadow arm; NULL
    -- without one. The unit is not here, but in experiment_requests, from which it can be removed.
    experiment_id        text,
    experiment_version   integer,
    experiment_arm       smallint,
    -- The epoch whose weights chose the arm; 0: the request is not analysed.
    experiment_epoch     smallint,
    -- Whether the request got the arm's whole treatment: it may have set itself what the arm sets.
    experiment_delivered boolean,
    -- Whether the server was asked with the project's own key. Such a row has no prices; NULL is false.
    own_key              boolean,
    -- The trace of the request (W3C Trace Context), where it has one.
    trace_id             text,
    PRIMARY KEY (request_id, attempt, revision, created_at),
    CHECK ((kind = 'adjustment') = (reason IS NOT NULL))
) PARTITION BY RANGE (created_at);

CREATE INDEX ledger_by_project ON ledger (project_id, created_at DESC, request_id);
CREATE INDEX ledger_by_period ON ledger (organization_id, period, created_at, request_id, attempt, revision);
CREATE INDEX ledger_shadows ON ledger (experiment_id, created_at) WHERE service_tier = 'shadow';
CREATE INDEX ledger_adjustments ON ledger (organization_id, period, project_id) WHERE kind = 'adjustment';

-- What waits to be added to usage_rollups, period_sums, traffic_rollups and traffic_times. The transaction that deletes a
-- row here adds it to all of them. Sums of money are numeric, since they may exceed a bigint.
CREATE TABLE rollup_queue (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    minute             timestamptz NOT NULL,
    period             date NOT NULL,
    corrects_period    date,
    kind               text NOT NULL,
    organization_id    text NOT NULL,
    project_id         text NOT NULL,
    api_key_id         text NOT NULL,
    endpoint           text NOT NULL,
    model              text NOT NULL,
    adapter_id         text,
    adapter_version    integer,
    adapter_class      text NOT NULL,
    service_tier       text NOT NULL,
    price_version      integer,
    num_requests       bigint NOT NULL,
    num_stop           bigint NOT NULL,
    num_length         bigint NOT NULL,
    num_cancelled      bigint NOT NULL,
    num_errors         bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   numeric NOT NULL,
    cached_cost_nanos  numeric NOT NULL,
    output_cost_nanos  numeric NOT NULL,
    cost_nanos         numeric NOT NULL,
    list_cost_nanos    numeric NOT NULL,
    -- The bucket (see time_bucket) of each request whose time is known.
    ttft_buckets       smallint[] NOT NULL,
    tpot_buckets       smallint[] NOT NULL,
    num_refused        bigint NOT NULL DEFAULT 0
);

-- Sums by the time of usage. adapter_id '': no adapter. The part of cost_nanos beyond the three kinds is adjustments.
CREATE TABLE usage_rollups (
    organization_id    text NOT NULL,
    width              text NOT NULL CHECK (width IN ('minute', 'hour', 'day')),
    bucket             timestamptz NOT NULL,
    project_id         text NOT NULL,
    api_key_id         text NOT NULL,
    model              text NOT NULL,
    adapter_id         text NOT NULL,
    endpoint           text NOT NULL,
    service_tier       text NOT NULL,
    num_requests       bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   numeric NOT NULL,
    cached_cost_nanos  numeric NOT NULL,
    output_cost_nanos  numeric NOT NULL,
    cost_nanos         numeric NOT NULL,
    PRIMARY KEY (organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier)
);

-- Sums by the month in which rows are billed, from which invoices are made. price_version 0: there were no prices.
CREATE TABLE period_sums (
    organization_id    text NOT NULL,
    period             date NOT NULL,
    project_id         text NOT NULL,
    kind               text NOT NULL,
    corrects_period    date,
    model              text NOT NULL,
    adapter_class      text NOT NULL,
    service_tier       text NOT NULL,
    price_version      integer NOT NULL,
    num_requests       bigint NOT NULL,
    prompt_tokens      bigint NOT NULL,
    cached_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    input_cost_nanos   numeric NOT NULL,
    cached_cost_nanos  numeric NOT NULL,
    output_cost_nanos  numeric NOT NULL,
    cost_nanos         numeric NOT NULL,
    list_cost_nanos    numeric NOT NULL,
    UNIQUE NULLS NOT DISTINCT (organization_id, period, project_id, kind, corrects_period, model, adapter_class,
                               service_tier, price_version)
);

-- The requests that each journal had open at its last report: sent to an engine and not in the ledger yet. A journal
-- that is replayed loses its row. A journal whose folder is lost keeps the row, less the requests that its engine
-- reported to another gateway; the rest can be billed by nobody.
CREATE TABLE journals (
    id             text PRIMARY KEY,
    open_requests  bigint NOT NULL CHECK (open_requests >= 0),
    heard_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The version of the gateway that writes the journal, and when it started; NULL where no gateway runs.
    version        text,
    started_at     timestamptz,
    -- The machine and the folder that the journal is in, as MACHINE:PATH.
    folder         text,
    -- The protocol that the gateway speaks with engines, such as 3.1.
    protocol       text
);

-- What the ledger took of each engine's own counts, to compare with the counts that the engine reports. By journal, so
-- that no two gateways wait for each other. completion_tokens includes discarded tokens.
CREATE TABLE engine_usage (
    engine_id          text NOT NULL,
    journal_id         text NOT NULL,
    prompt_tokens      bigint NOT NULL,
    completion_tokens  bigint NOT NULL,
    updated_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (engine_id, journal_id)
);
