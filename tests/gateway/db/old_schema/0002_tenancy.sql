-- People, roles, service accounts, suspension, rotation, deletion, logins, and the audit log. It only adds, so gateways
-- of the version before go on serving; what they do not know yet (suspension, allow-lists) holds once they are replaced.

ALTER TABLE organizations ADD COLUMN suspended_at timestamptz;

-- An archived project gives its name back: name becomes its id, which is unique, and archived_name keeps what it was.
ALTER TABLE projects
    ADD COLUMN suspended_at   timestamptz,
    ADD COLUMN archived_at    timestamptz,
    ADD COLUMN archived_name  text,
    ADD COLUMN purge_after    timestamptz,
    ADD COLUMN purged_at      timestamptz,
    ADD CHECK ((archived_at IS NULL) = (archived_name IS NULL)),
    ADD CHECK ((archived_at IS NULL) = (purge_after IS NULL));

CREATE INDEX projects_to_purge ON projects (purge_after) WHERE purged_at IS NULL;

-- role: in the whole organization; NULL for members of single projects. A removed user keeps the row for the audit log.
CREATE TABLE users (
    id                 text PRIMARY KEY,
    organization_id    text NOT NULL REFERENCES organizations (id),
    email              text NOT NULL CHECK (email = lower(email)),
    name               text NOT NULL,
    role               text CHECK (role IN ('owner', 'admin', 'billing', 'viewer')),
    password_hash      text,
    totp_secret        bytea,
    totp_confirmed_at  timestamptz,
    totp_last_step     bigint NOT NULL DEFAULT 0,
    created_at         timestamptz NOT NULL DEFAULT now(),
    removed_at         timestamptz,
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

-- models, ip_allow: NULL allows all. A rotated key has two secrets until previous_expires_at.
ALTER TABLE api_keys
    ADD COLUMN models                    text[],
    ADD COLUMN ip_allow                  cidr[],
    ADD COLUMN suspended_at              timestamptz,
    ADD COLUMN previous_sha256           bytea UNIQUE CHECK (octet_length(previous_sha256) = 32),
    ADD COLUMN previous_expires_at       timestamptz,
    ADD COLUMN owner_user_id             text,
    ADD COLUMN owner_service_account_id  text,
    ADD FOREIGN KEY (organization_id, owner_user_id) REFERENCES users (organization_id, id),
    ADD FOREIGN KEY (project_id, owner_service_account_id) REFERENCES service_accounts (project_id, id),
    ADD CHECK (owner_user_id IS NULL OR owner_service_account_id IS NULL),
    ADD CHECK ((previous_sha256 IS NULL) = (previous_expires_at IS NULL));

CREATE INDEX api_keys_by_organization ON api_keys (organization_id, created_at, id) WHERE kind = 'admin';
CREATE INDEX api_keys_by_owner ON api_keys (owner_user_id) WHERE owner_user_id IS NOT NULL;

-- A key as it may be shown: without digests, with its owner's name.
CREATE VIEW shown_api_keys AS
    SELECT k.id, k.kind, k.organization_id, k.project_id, k.name, k.public, k.scopes, k.models, k.ip_allow,
           k.created_at, k.expires_at, k.revoked_at, k.suspended_at, k.last_used_at, k.previous_expires_at,
           k.owner_user_id, k.owner_service_account_id, u.email AS owner_email, coalesce(u.name, s.name) AS owner_name
    FROM api_keys k
    LEFT JOIN users u ON u.id = k.owner_user_id
    LEFT JOIN service_accounts s ON s.id = k.owner_service_account_id;

-- What a browser holds after a password was checked. The token itself is never stored.
CREATE TABLE logins (
    id            text PRIMARY KEY,
    user_id       text NOT NULL REFERENCES users (id),
    token_sha256  bytea NOT NULL UNIQUE CHECK (octet_length(token_sha256) = 32),
    created_at    timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    revoked_at    timestamptz,
    address       text NOT NULL,
    user_agent    text NOT NULL
);

CREATE INDEX logins_by_user ON logins (user_id, created_at);

-- Keyed on the SHA-256 of the e-mail address that was tried, known or not: a lockout must not tell which exist.
CREATE TABLE login_failures (
    identity      bytea PRIMARY KEY CHECK (octet_length(identity) = 32),
    num_failures  integer NOT NULL,
    failed_at     timestamptz NOT NULL,
    locked_until  timestamptz NOT NULL
);

CREATE INDEX login_failures_by_age ON login_failures (failed_at);

-- Append only, and one chain of hashes per organization: hash covers the row and the hash of the row before it.
-- before and after are JSON, kept as the very text that was hashed.
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
    before           text,
    after            text,
    previous_hash    bytea NOT NULL,
    hash             bytea NOT NULL,
    PRIMARY KEY (organization_id, sequence)
);

CREATE TABLE audit_heads (
    organization_id  text PRIMARY KEY,
    sequence         bigint NOT NULL DEFAULT 0,
    hash             bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex')
);

CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END
$$;

CREATE TRIGGER audit_log_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- As announce_change, for tables without a project_id.
CREATE FUNCTION announce_tenancy_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    version  bigint;
BEGIN
    UPDATE installation SET change_version = change_version + 1 RETURNING change_version INTO version;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', version, 'table', TG_TABLE_NAME, 'id', NEW.id, 'project_id', NULL)::text);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER api_keys_changed
    AFTER INSERT OR DELETE OR UPDATE OF kind, organization_id, project_id, sha256, scopes, expires_at, revoked_at,
        models, ip_allow, suspended_at, previous_sha256, previous_expires_at, owner_user_id
    ON api_keys FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE TRIGGER projects_changed
    AFTER UPDATE OF suspended_at, archived_at ON projects FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();

CREATE TRIGGER organizations_changed
    AFTER UPDATE OF suspended_at ON organizations FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();

CREATE TRIGGER users_changed
    AFTER UPDATE OF role, removed_at ON users FOR EACH ROW EXECUTE FUNCTION announce_tenancy_change();
