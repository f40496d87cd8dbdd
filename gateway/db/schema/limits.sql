-- Limits: what an organization, a project or a key may use, per calendar window of the database's clock in UTC.
--
-- available = max - settled - leases. Only the ledger's trigger moves `settled`, in the transaction that writes the
-- usage, whichever gateway writes it: settled is the sum of the ledger's rows and cannot drift from them.

CREATE TABLE limits (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    project_id       text,
    api_key_id       text REFERENCES api_keys (id) ON DELETE CASCADE,
    model            text,
    unit             text NOT NULL CHECK (unit IN ('requests', 'input_tokens', 'output_tokens', 'tokens',
                                                   'cost_nanos', 'concurrency', 'storage_bytes',
                                                   'enqueued_batch_tokens')),
    period           text NOT NULL CHECK (period IN ('minute', 'day', 'month', 'none')),
    max              bigint NOT NULL CHECK (max >= 0),
    hard             boolean NOT NULL,
    alert_percents   integer[] NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id) ON DELETE CASCADE,
    CHECK (api_key_id IS NULL OR project_id IS NOT NULL),
    UNIQUE NULLS NOT DISTINCT (organization_id, project_id, api_key_id, model, unit, period, hard)
);

-- What each window of a limit has used. The window of a limit without a period begins in 1970: a prepaid balance.
CREATE TABLE limit_accounts (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    settled       bigint NOT NULL,
    PRIMARY KEY (limit_id, window_start)
);

-- Gateways that hold leases. A gateway that is silent is first suspected; its leases end only some time later, so that
-- no lease ends because the database was away.
CREATE TABLE limit_gateways (
    id            text PRIMARY KEY,
    heard_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    suspected_at  timestamptz
);

CREATE TABLE limit_leases (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    gateway_id    text NOT NULL CONSTRAINT limit_leases_gateway REFERENCES limit_gateways (id) ON DELETE CASCADE,
    amount        bigint NOT NULL CHECK (amount > 0),
    PRIMARY KEY (limit_id, window_start, gateway_id)
);

CREATE INDEX limit_leases_by_gateway ON limit_leases (gateway_id);

-- Where alerts are sent.
CREATE TABLE webhooks (
    id                 text PRIMARY KEY,
    organization_id    text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    url                text NOT NULL,
    -- What signs the messages, encrypted by the gateways with the content key of the id in content_key; NULL there: in
    -- clear, from before.
    secret             bytea NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT now(),
    -- The outcome of messages stays when the messages are gone.
    last_delivered_at  timestamptz,
    last_failed_at     timestamptz,
    last_error         text,
    content_key        text,
    -- The events that the webhook is called for.
    events             text[] NOT NULL DEFAULT '{limit.threshold_reached,experiment.paused}',
    -- The secret before the last rotation, encrypted like the present one: it signs as well until former_until.
    former_secret      bytea,
    former_content_key text,
    former_until       timestamptz
);

CREATE INDEX webhooks_by_organization ON webhooks (organization_id, created_at, id);

-- Thresholds that were crossed: each causes one alert per limit and window.
CREATE TABLE limit_alerts (
    limit_id      text NOT NULL REFERENCES limits (id) ON DELETE CASCADE,
    window_start  timestamptz NOT NULL,
    percent       integer NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (limit_id, window_start, percent)
);

-- Messages to webhooks; the first gateway that is free delivers them.
CREATE TABLE webhook_deliveries (
    id            text PRIMARY KEY,
    webhook_id    text NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    body          text NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at  timestamptz,
    last_error    text
);

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE delivered_at IS NULL AND attempts < 46;
CREATE INDEX webhook_deliveries_by_webhook ON webhook_deliveries (webhook_id);
