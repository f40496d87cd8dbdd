-- Keys as they may be shown: without digests, with the owner's name.
DROP VIEW IF EXISTS shown_api_keys;
CREATE VIEW shown_api_keys AS
    SELECT k.id, k.kind, k.organization_id, k.project_id, k.name, k.public, k.scopes, k.models, k.ip_allow,
           k.created_at, k.expires_at, k.revoked_at, k.suspended_at, k.last_used_at, k.previous_expires_at,
           k.owner_user_id, k.owner_service_account_id, u.email AS owner_email, coalesce(u.name, s.name) AS owner_name
    FROM api_keys k
    LEFT JOIN users u ON u.id = k.owner_user_id
    LEFT JOIN service_accounts s ON s.id = k.owner_service_account_id;

CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END
$$;

CREATE OR REPLACE TRIGGER audit_log_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- Columns that no cache holds, such as last_used_at, which is written all the time, announce nothing.
CREATE OR REPLACE TRIGGER api_keys_changed
    AFTER INSERT OR DELETE OR UPDATE OF kind, organization_id, project_id, sha256, scopes, expires_at, revoked_at,
        models, ip_allow, suspended_at, previous_sha256, previous_expires_at, owner_user_id
    ON api_keys FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER projects_changed
    AFTER UPDATE OF suspended_at, archived_at, keep_replies, store_days, log_content_days, service_tiers
    ON projects FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER organizations_changed
    AFTER UPDATE OF suspended_at ON organizations FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER users_changed
    AFTER UPDATE OF role, removed_at ON users FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Announces the user whose login ended or whose membership changed, so that live streams look at once whether they may
-- go on. The change is not counted: the counter's row would be locked until the end of the transaction, by some before
-- the audit log's row and by others after it. Streams look every few seconds as well.
CREATE OR REPLACE FUNCTION announce_person() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed  jsonb;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', 0, 'table', TG_TABLE_NAME, 'id', changed ->> 'user_id',
        'project_id', changed ->> 'project_id')::text);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER logins_changed
    AFTER UPDATE OF revoked_at ON logins FOR EACH ROW EXECUTE FUNCTION announce_person();

CREATE OR REPLACE TRIGGER project_members_changed
    AFTER INSERT OR DELETE OR UPDATE OF role ON project_members FOR EACH ROW EXECUTE FUNCTION announce_person();
