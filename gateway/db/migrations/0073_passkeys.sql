-- Passkeys of people, the challenges that they answered, and which logins were made by one.

CREATE TABLE passkeys (
    id             text PRIMARY KEY,
    user_id        text NOT NULL REFERENCES users (id),
    credential_id  bytea NOT NULL UNIQUE CHECK (octet_length(credential_id) <= 1023),
    public_key     bytea NOT NULL,
    sign_count     bigint NOT NULL,
    name           text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_used_at   timestamptz
);

CREATE INDEX passkeys_by_user ON passkeys (user_id, created_at, id);

CREATE TABLE passkey_challenges (
    sha256      bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    expires_at  timestamptz NOT NULL
);

CREATE INDEX passkey_challenges_by_end ON passkey_challenges (expires_at);

ALTER TABLE logins ADD COLUMN by_passkey boolean NOT NULL DEFAULT false;
