-- Returns the bytes of adapters that a project or, with NULL, the whole organization stores. The same content counts
-- once per project; refused and deleted versions take no room.
CREATE OR REPLACE FUNCTION stored_bytes(the_organization text, the_project text) RETURNS bigint
    LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(size_bytes), 0)::bigint FROM (
        SELECT DISTINCT a.project_id, v.digest, v.size_bytes
        FROM projects p JOIN adapters a ON a.project_id = p.id AND a.removed_at IS NULL
            JOIN adapter_versions v ON v.adapter_id = a.id AND v.state NOT IN ('rejected', 'deleted')
        WHERE p.organization_id = the_organization AND (the_project IS NULL OR p.id = the_project)
    ) stored
$$;

-- Only rows of a database from before bases were recorded have no base, until a gateway adopts them.
CREATE OR REPLACE FUNCTION refuse_adapter_without_base() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'adapter % has no base', NEW.id;
END
$$;

CREATE OR REPLACE TRIGGER adapters_have_a_base BEFORE INSERT ON adapters
    FOR EACH ROW WHEN (NEW.base_digest IS NULL) EXECUTE FUNCTION refuse_adapter_without_base();

-- An adapter moves from one base to another only with the pools: to a base that one serves, from one that none does.
CREATE OR REPLACE FUNCTION keep_adapter_base() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.base_digest IS NULL
       OR NOT EXISTS (SELECT FROM served_bases WHERE base_digest = NEW.base_digest)
       OR EXISTS (SELECT FROM served_bases WHERE base_digest = OLD.base_digest) THEN
        RAISE EXCEPTION 'adapter % belongs to base %', OLD.id, OLD.base_digest;
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER adapters_keep_their_base BEFORE UPDATE OF base_digest ON adapters
    FOR EACH ROW WHEN (OLD.base_digest IS NOT NULL AND NEW.base_digest IS DISTINCT FROM OLD.base_digest)
    EXECUTE FUNCTION keep_adapter_base();

-- The content of a version never changes, and its states follow one another in one direction.
CREATE OR REPLACE FUNCTION keep_adapter_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.adapter_id, NEW.version, NEW.digest, NEW.rank, NEW.size_bytes, NEW.created_at)
        IS DISTINCT FROM (OLD.adapter_id, OLD.version, OLD.digest, OLD.rank, OLD.size_bytes, OLD.created_at) THEN
        RAISE EXCEPTION 'version % of adapter % is immutable', OLD.version, OLD.adapter_id;
    END IF;
    IF NEW.state <> OLD.state THEN
        IF (OLD.state, NEW.state) NOT IN (
            ('inspected', 'probed'), ('inspected', 'rejected'), ('probed', 'ready'), ('probed', 'rejected'),
            ('ready', 'retired'), ('retired', 'deleted'), ('rejected', 'deleted')) THEN
            RAISE EXCEPTION 'version % of adapter % cannot go from % to %',
                OLD.version, OLD.adapter_id, OLD.state, NEW.state;
        END IF;
        IF OLD.state = 'ready' AND EXISTS (SELECT FROM adapters a WHERE a.id = OLD.adapter_id
                                           AND a.current_version = OLD.version AND a.removed_at IS NULL) THEN
            RAISE EXCEPTION 'version % of adapter % is current', OLD.version, OLD.adapter_id;
        END IF;
        NEW.changed_at := now();
    END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER adapter_versions_are_kept BEFORE UPDATE ON adapter_versions
    FOR EACH ROW EXECUTE FUNCTION keep_adapter_version();

-- The current version is a ready one, and the version that was current before is remembered.
CREATE OR REPLACE FUNCTION keep_current_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.current_version IS NOT DISTINCT FROM OLD.current_version THEN
        RETURN NEW;
    END IF;
    IF NOT EXISTS (SELECT FROM adapter_versions v WHERE v.adapter_id = NEW.id AND v.version = NEW.current_version
                   AND v.state = 'ready') THEN
        RAISE EXCEPTION 'version % of adapter % is not ready', NEW.current_version, NEW.id;
    END IF;
    NEW.previous_version := OLD.current_version;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER adapters_current_is_kept BEFORE UPDATE OF current_version ON adapters
    FOR EACH ROW EXECUTE FUNCTION keep_current_version();

CREATE OR REPLACE TRIGGER adapters_changed
    AFTER INSERT OR DELETE OR UPDATE ON adapters FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Caches hold versions, too: the announcement of the adapter announces its versions.
CREATE OR REPLACE FUNCTION announce_version_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE adapters SET current_version = current_version WHERE id = NEW.adapter_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER adapter_versions_changed AFTER UPDATE OF state ON adapter_versions
    FOR EACH ROW WHEN ((OLD.state = 'ready') <> (NEW.state = 'ready')) EXECUTE FUNCTION announce_version_change();

CREATE OR REPLACE TRIGGER model_aliases_changed
    AFTER INSERT OR DELETE OR UPDATE ON model_aliases FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER adapter_shares_changed
    AFTER INSERT OR DELETE OR UPDATE ON adapter_shares FOR EACH ROW EXECUTE FUNCTION announce_change();
