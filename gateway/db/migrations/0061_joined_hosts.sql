-- Hosts that join by a token, prove their keys over TCP, are drained and removed.

ALTER TABLE hosts
    ADD COLUMN public_keys text[] NOT NULL DEFAULT '{}',
    ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN is_drained boolean NOT NULL DEFAULT false,
    ADD COLUMN removed_at timestamptz;

CREATE TABLE host_tokens (
    id               text PRIMARY KEY,
    digest           bytea NOT NULL UNIQUE,
    organization_id  text NOT NULL REFERENCES organizations (id),
    name             text,
    labels           jsonb NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL,
    host_id          text REFERENCES hosts (id)
);

CREATE INDEX host_tokens_by_expiry ON host_tokens (expires_at);

ALTER TABLE replicas ADD COLUMN public_key text;
