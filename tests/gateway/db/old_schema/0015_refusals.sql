-- Requests of known tenants that were refused before they ran: why, and nothing of what they said. Alike ones of a minute
-- are one row. request_ids: of the first of them. limited_by: the limit that refused, as it stood.
CREATE TABLE refusals (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    api_key_id       text NOT NULL,
    minute           timestamptz NOT NULL,
    kind             bytea NOT NULL,
    request_ids      text[] NOT NULL,
    endpoint         text NOT NULL,
    model            text NOT NULL,
    status           integer NOT NULL,
    code             text NOT NULL,
    type             text NOT NULL,
    param            text NOT NULL,
    message          text NOT NULL,
    limited_by       jsonb,
    num              bigint NOT NULL CHECK (num > 0),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (project_id, minute, kind)
);

CREATE INDEX refusals_by_project ON refusals (project_id, id DESC);
CREATE INDEX refusals_by_organization ON refusals (organization_id, id DESC);
CREATE INDEX refusals_by_request ON refusals USING gin (request_ids);
CREATE INDEX refusals_by_time ON refusals (created_at);
