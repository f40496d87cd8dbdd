-- The price book, billing periods, credits, invoices and the delivery of exports.

-- Versions of the price book, each complete and never changed, in force from effective_at until the next one is.
CREATE TABLE price_versions (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id),
    version          integer NOT NULL CHECK (version >= 1),
    currency         text NOT NULL CHECK (currency ~ '^[a-z]{3}$'),
    effective_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (organization_id, version),
    UNIQUE (organization_id, effective_at)
);

-- Nanos of the currency per million tokens. '*' matches everything; model may be a model's id or its base's.
CREATE TABLE prices (
    organization_id     text NOT NULL,
    version             integer NOT NULL,
    model               text NOT NULL,
    adapter_class       text NOT NULL,
    service_tier        text NOT NULL,
    input_nanos         bigint NOT NULL CHECK (input_nanos BETWEEN 0 AND 1000000000000000),
    cached_input_nanos  bigint NOT NULL CHECK (cached_input_nanos BETWEEN 0 AND input_nanos),
    output_nanos        bigint NOT NULL CHECK (output_nanos BETWEEN 0 AND 1000000000000000),
    PRIMARY KEY (organization_id, version, model, adapter_class, service_tier),
    FOREIGN KEY (organization_id, version) REFERENCES price_versions (organization_id, version)
);

CREATE TABLE price_discounts (
    organization_id  text NOT NULL,
    version          integer NOT NULL,
    project_id       text NOT NULL,
    basis_points     integer NOT NULL CHECK (basis_points BETWEEN 1 AND 10000),
    PRIMARY KEY (organization_id, version, project_id),
    FOREIGN KEY (organization_id, version) REFERENCES price_versions (organization_id, version)
);

-- Months that are closed; all months after the last of them are open.
CREATE TABLE billing_periods (
    organization_id  text NOT NULL REFERENCES organizations (id),
    start            date NOT NULL CHECK (extract(day FROM start) = 1),
    closed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    invoiced_at      timestamptz,
    PRIMARY KEY (organization_id, start)
);

-- Names and the currency as they were when the month was closed: its files show these whatever changes later.
CREATE TABLE period_names (
    organization_id  text NOT NULL,
    period           date NOT NULL,
    object_id        text NOT NULL,
    name             text NOT NULL,
    PRIMARY KEY (organization_id, period, object_id)
);

-- The customer whom Stripe bills for a project.
CREATE TABLE stripe_customers (
    organization_id  text NOT NULL,
    project_id       text PRIMARY KEY,
    customer_id      text NOT NULL CHECK (customer_id ~ '^cus_[A-Za-z0-9_]{1,64}$'),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id) ON DELETE CASCADE
);

-- Stripe's customers as they were when the month was closed: its files name these whatever changes later.
CREATE TABLE period_stripe_customers (
    organization_id  text NOT NULL,
    period           date NOT NULL,
    project_id       text NOT NULL,
    customer_id      text NOT NULL,
    PRIMARY KEY (organization_id, period, project_id)
);

-- Credits, drawn oldest first.
--
-- balance = credits - lapsed - drawn by closed periods - cost of open periods. A project is prepaid when it has a hard
-- limit of its cost without a window: the limit's account is the sum of what the ledger wrote since, and its max is that
-- sum plus the balance, computed anew from the rows whenever credits or periods change.
CREATE TABLE credit_grants (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    amount_nanos     bigint NOT NULL CHECK (amount_nanos > 0),
    reason           text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at       timestamptz,
    -- The rest of the grant when it expired; NULL before that.
    lapsed_nanos     bigint CHECK (lapsed_nanos BETWEEN 0 AND amount_nanos),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id)
);

CREATE INDEX credit_grants_by_project ON credit_grants (project_id, created_at, id);
CREATE INDEX credit_grants_to_lapse ON credit_grants (expires_at)
    WHERE lapsed_nanos IS NULL AND expires_at IS NOT NULL;

-- What closed periods took of credits.
CREATE TABLE credit_draws (
    grant_id      text NOT NULL REFERENCES credit_grants (id),
    period        date NOT NULL,
    amount_nanos  bigint NOT NULL CHECK (amount_nanos > 0),
    PRIMARY KEY (grant_id, period)
);

CREATE TABLE invoices (
    number           text NOT NULL,
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    period           date NOT NULL,
    issued_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- JSON, stored as the very text that was issued.
    document         text NOT NULL,
    PRIMARY KEY (organization_id, number),
    UNIQUE (organization_id, project_id, period),
    FOREIGN KEY (organization_id, period) REFERENCES billing_periods (organization_id, start)
);

-- Exports that are delivered repeatedly: each day once it is over, or each month once it is closed.
CREATE TABLE deliveries (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name             text NOT NULL,
    kind             text NOT NULL,
    format           text NOT NULL,
    schedule         text NOT NULL CHECK (schedule IN ('daily', 'monthly')),
    destination      jsonb NOT NULL,
    -- The object store's secret key, encrypted by the gateways with the content key of the id in content_key; NULL there:
    -- in clear, from before. NULL for a folder.
    secret           bytea,
    -- The first day or month to deliver.
    from_period      date NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    content_key      text,
    UNIQUE (organization_id, name)
);

-- One row per delivery and period.
CREATE TABLE delivery_runs (
    delivery_id   text NOT NULL REFERENCES deliveries (id) ON DELETE CASCADE,
    period        text NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    -- When the next attempt is due.
    due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at  timestamptz,
    last_error    text,
    -- The day's sums (see day_sums) before the day was last delivered, and when they were last compared with the present.
    sums          text,
    checked_at    timestamptz,
    PRIMARY KEY (delivery_id, period)
);

CREATE INDEX delivery_runs_due ON delivery_runs (due_at) WHERE delivered_at IS NULL;
