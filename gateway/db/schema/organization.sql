-- Organizations, their projects (a tenant is a project), people, keys, logins and the audit log.

CREATE TABLE organizations (
    id            text PRIMARY KEY,
    name          text NOT NULL UNIQUE,
    created_at    timestamptz NOT NULL DEFAULT now(),
    suspended_at  timestamptz
);

CREATE TABLE projects (
    id                text PRIMARY KEY,
    organization_id   text NOT NULL REFERENCES organizations (id),
    -- An archived project gives its name back: name becomes the id, archived_name keeps the former name.
    name              text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now(),
    suspended_at      timestamptz,
    archived_at       timestamptz,
    archived_name     text,
    purge_after       timestamptz,
    purged_at         timestamptz,
    -- Whether replies may be stored for the day that their Idempotency-Key lasts.
    keep_replies      boolean NOT NULL DEFAULT true,
    -- Replies stored up to this instant are not shown: storing was forbidden at that time.
    replies_from      timestamptz NOT NULL DEFAULT '-infinity',
    -- For how many days stored chat completions are available; 0 forbids storing.
    store_days        integer NOT NULL DEFAULT 0 CHECK (store_days BETWEEN 0 AND 365),
    -- For how many days request contents are logged; 0 turns logging off.
    log_content_days  integer NOT NULL DEFAULT 0 CHECK (log_content_days BETWEEN 0 AND 365),
    -- Contents logged up to this instant are not shown: logging was turned off at that time.
    contents_from     timestamptz NOT NULL DEFAULT '-infinity',
    -- The service tiers that requests may ask for: a higher one takes service from other projects.
    service_tiers     text[] NOT NULL DEFAULT '{default,flex}'
                      CHECK (service_tiers <@ '{default,flex,priority}' AND 'default' = ANY (service_tiers)),
    UNIQUE (organization_id, name),
    UNIQUE (organization_id, id),
    CHECK ((archived_at IS NULL) = (archived_name IS NULL)),
    CHECK ((archived_at IS NULL) = (purge_after IS NULL))
);

CREATE INDEX projects_to_purge ON projects (purge_after) WHERE purged_at IS NULL;

-- The row of a removed user stays, since the audit log names it.
CREATE TABLE users (
    id                 text PRIMARY KEY,
    organization_id    text NOT NULL REFERENCES organizations (id),
    email              text NOT NULL CHECK (email = lower(email)),
    name               text NOT NULL,
    -- The role in the whole organization; NULL for members of single projects.
    role               text CHECK (role IN ('owner', 'admin', 'billing', 'viewer')),
    password_hash      text,
    -- The seed of the authenticator, encrypted by the gateways with the content key of the id in totp_content_key; NULL
    -- there: in clear, from before.
    totp_secret        bytea,
    totp_confirmed_at  timestamptz,
    totp_last_step     bigint NOT NULL DEFAULT 0,
    created_at         timestamptz NOT NULL DEFAULT now(),
    removed_at         timestamptz,
    totp_content_key   text,
    -- The digests of codes that take the place of the authenticator's, each once.
    recovery_codes     bytea[] NOT NULL DEFAULT '{}',
    UNIQUE (organization_id, id)
);

CREATE UNIQUE INDEX users_by_email ON users (email) WHERE removed_at IS NULL;

CREATE TABLE project_members (
    organization_id  text NOT NULL,
    project_id       text NOT NULL,
    user_id          text NOT NULL,
    role             text NOT NULL CHECK (role IN ('owner', 'admin', 'billing', 'viewer')),
    added_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, user_id),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id),
    FOREIGN KEY (organization_id, user_id) REFERENCES users (organization_id, id)
);

CREATE INDEX project_members_by_user ON project_members (user_id);

CREATE TABLE service_accounts (
    id          text PRIMARY KEY,
    project_id  text NOT NULL REFERENCES projects (id),
    name        text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    removed_at  timestamptz,
    UNIQUE (project_id, id)
);

CREATE INDEX service_accounts_by_project ON service_accounts (project_id, created_at, id);

-- Keys of projects and of operators. No secret is stored: sha256 is the digest of the whole key, public the part that
-- may be shown. A rotated key has two secrets until previous_expires_at.
CREATE TABLE api_keys (
    id                        text PRIMARY KEY,
    kind                      text NOT NULL CHECK (kind IN ('project', 'admin')),
    organization_id           text NOT NULL REFERENCES organizations (id),
    project_id                text,
    name                      text NOT NULL,
    public                    text NOT NULL,
    sha256                    bytea NOT NULL UNIQUE CHECK (octet_length(sha256) = 32),
    scopes                    text[] NOT NULL,
    -- The models that the key may call; NULL allows all.
    models                    text[],
    -- The networks from which the key may be used; NULL allows all.
    ip_allow                  cidr[],
    created_at                timestamptz NOT NULL DEFAULT now(),
    expires_at                timestamptz,
    revoked_at                timestamptz,
    suspended_at              timestamptz,
    last_used_at              timestamptz,
    previous_sha256           bytea UNIQUE CHECK (octet_length(previous_sha256) = 32),
    previous_expires_at       timestamptz,
    owner_user_id             text,
    owner_service_account_id  text,
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id),
    FOREIGN KEY (organization_id, owner_user_id) REFERENCES users (organization_id, id),
    FOREIGN KEY (project_id, owner_service_account_id) REFERENCES service_accounts (project_id, id),
    CHECK ((kind = 'admin') = (project_id IS NULL)),
    CHECK (owner_user_id IS NULL OR owner_service_account_id IS NULL),
    CHECK ((previous_sha256 IS NULL) = (previous_expires_at IS NULL))
);

CREATE INDEX api_keys_by_project ON api_keys (project_id, created_at, id);
CREATE INDEX api_keys_by_organization ON api_keys (organization_id, created_at, id) WHERE kind = 'admin';
CREATE INDEX api_keys_by_owner ON api_keys (owner_user_id) WHERE owner_user_id IS NOT NULL;

-- Sessions of browsers. The token is not stored, only its digest.
CREATE TABLE logins (
    id            text PRIMARY KEY,
    user_id       text NOT NULL REFERENCES users (id),
    token_sha256  bytea NOT NULL UNIQUE CHECK (octet_length(token_sha256) = 32),
    created_at    timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    address       text NOT NULL,
    user_agent    text NOT NULL,
    -- The digest of the token in the cookie that says which device this was.
    device_sha256 bytea CHECK (octet_length(device_sha256) = 32),
    -- Whether it was made by a passkey, or has added one.
    by_passkey    boolean NOT NULL DEFAULT false
);

CREATE INDEX logins_by_user ON logins (user_id, created_at);

-- Public keys by which people log in. The private ones never leave their devices.
CREATE TABLE passkeys (
    id             text PRIMARY KEY,
    user_id        text NOT NULL REFERENCES users (id),
    -- The name that the device gave to the key pair.
    credential_id  bytea NOT NULL UNIQUE CHECK (octet_length(credential_id) <= 1023),
    public_key     bytea NOT NULL,
    sign_count     bigint NOT NULL,
    name           text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_used_at   timestamptz,
    -- The host name that it belongs to, WebAuthn's relying party; null for one of before this column, until its use.
    rp_id          text
);

CREATE INDEX passkeys_by_user ON passkeys (user_id, created_at, id);

-- Challenges that passkeys have answered, by their SHA-256, until they expire: none is answered twice.
CREATE TABLE passkey_challenges (
    sha256      bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    expires_at  timestamptz NOT NULL
);

CREATE INDEX passkey_challenges_by_end ON passkey_challenges (expires_at);

-- Failed sign-ins by who tried: an e-mail address, known or not, with a network or a device, or all strangers together.
-- Each is known by a SHA-256. Counters must not tell which addresses exist.
CREATE TABLE login_failures (
    identity      bytea PRIMARY KEY CHECK (octet_length(identity) = 32),
    num_failures  integer NOT NULL,
    failed_at     timestamptz NOT NULL,
    locked_until  timestamptz NOT NULL,
    -- The SHA-256 of the e-mail address, by which all of its counters are forgotten.
    person        bytea CHECK (octet_length(person) = 32)
);

CREATE INDEX login_failures_by_age ON login_failures (failed_at);
CREATE INDEX login_failures_by_person ON login_failures (person);

-- Append only, one chain of hashes per organization: hash covers the row and the hash of the row before it.
CREATE TABLE audit_log (
    organization_id  text NOT NULL,
    sequence         bigint NOT NULL CHECK (sequence >= 1),
    id               text NOT NULL UNIQUE,
    effective_at     timestamptz NOT NULL,
    actor_kind       text NOT NULL,
    actor_id         text NOT NULL,
    actor_email      text,
    address          text NOT NULL,
    request_id       text NOT NULL,
    event            text NOT NULL,
    object_id        text NOT NULL,
    project_id       text,
    -- JSON, stored as the very text that was hashed.
    before           text,
    after            text,
    previous_hash    bytea NOT NULL,
    hash             bytea NOT NULL,
    PRIMARY KEY (organization_id, sequence)
);

CREATE INDEX audit_log_by_object ON audit_log (organization_id, object_id, sequence);

-- The last link of each organization's chain.
CREATE TABLE audit_heads (
    organization_id  text PRIMARY KEY,
    sequence         bigint NOT NULL DEFAULT 0,
    hash             bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex')
);

-- One row. id names this database to engines; change_version counts the changes that caches must notice. The counter is
-- updated inside the changing transaction, so it grows in the order of commits and a poll cannot miss one.
CREATE TABLE installation (
    only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id              text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''),
    change_version  bigint NOT NULL DEFAULT 0
);

INSERT INTO installation DEFAULT VALUES;
