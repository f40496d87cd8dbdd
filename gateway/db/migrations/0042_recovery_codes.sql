-- Codes for who has lost their authenticator, each good once, by their SHA-256.
ALTER TABLE users ADD COLUMN recovery_codes bytea[] NOT NULL DEFAULT '{}';
