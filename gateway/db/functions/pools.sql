-- Changes of pools and replicas reach all gateways and agents. A host renews its lease without telling anybody.

CREATE OR REPLACE TRIGGER pools_changed
    AFTER INSERT OR DELETE OR UPDATE ON pools FOR EACH ROW EXECUTE FUNCTION announce_change();

-- Announces the pool of a changed row.
CREATE OR REPLACE FUNCTION announce_pool() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed  jsonb;
    version  bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
    UPDATE installation SET change_version = change_version + 1 RETURNING change_version INTO version;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', version, 'table', 'pools', 'id', changed ->> 'pool_id', 'project_id', NULL)::text);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER pool_revisions_changed
    AFTER INSERT OR DELETE OR UPDATE ON pool_revisions FOR EACH ROW EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER pool_grants_changed
    AFTER INSERT OR DELETE OR UPDATE ON pool_grants FOR EACH ROW EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER backend_keys_changed
    AFTER INSERT OR DELETE OR UPDATE ON backend_keys FOR EACH ROW EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER provider_keys_changed
    AFTER INSERT OR DELETE OR UPDATE ON provider_keys FOR EACH ROW EXECUTE FUNCTION announce_change();

CREATE OR REPLACE TRIGGER replicas_changed
    AFTER INSERT OR DELETE ON replicas FOR EACH ROW EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER replicas_moved AFTER UPDATE ON replicas FOR EACH ROW
    WHEN ((OLD.state, OLD.address, OLD.revision, OLD.generation, OLD.replace)
          IS DISTINCT FROM (NEW.state, NEW.address, NEW.revision, NEW.generation, NEW.replace))
    EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER pool_scaling_made
    AFTER INSERT OR DELETE ON pool_scaling FOR EACH ROW EXECUTE FUNCTION announce_pool();

CREATE OR REPLACE TRIGGER pool_scaling_changed AFTER UPDATE ON pool_scaling FOR EACH ROW
    WHEN ((OLD.min_replicas, OLD.max_replicas, OLD.down_after_s, OLD.start_s)
          IS DISTINCT FROM (NEW.min_replicas, NEW.max_replicas, NEW.down_after_s, NEW.start_s))
    EXECUTE FUNCTION announce_pool();

-- A revision says what it said when it was made: only its preparation and its end are added.
CREATE OR REPLACE FUNCTION keep_pool_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.model, NEW.settings, NEW.driver) IS DISTINCT FROM (OLD.model, OLD.settings, OLD.driver)
       OR (OLD.base_digest IS NOT NULL AND NEW.base_digest IS DISTINCT FROM OLD.base_digest) THEN
        RAISE EXCEPTION 'revision % of pool % never changes', OLD.revision, OLD.pool_id;
    END IF;
    IF NEW.state <> OLD.state THEN NEW.changed_at := now(); END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER pool_revisions_are_kept BEFORE UPDATE ON pool_revisions
    FOR EACH ROW EXECUTE FUNCTION keep_pool_revision();

-- A replica that was stopped stays stopped, and no older start of it is heard any more.
CREATE OR REPLACE FUNCTION keep_replica() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.generation < OLD.generation THEN
        RAISE EXCEPTION 'replica % has been started since', OLD.id;
    END IF;
    IF OLD.state = 'stopped' AND NEW.state <> 'stopped' THEN
        RAISE EXCEPTION 'replica % was stopped', OLD.id;
    END IF;
    IF NEW.state <> OLD.state THEN NEW.since := now(); END IF;
    RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER replicas_are_kept BEFORE UPDATE ON replicas
    FOR EACH ROW EXECUTE FUNCTION keep_replica();

-- The bases that pools serve, each with the pool's name.
CREATE OR REPLACE VIEW served_bases AS
    SELECT v.base_digest, p.name FROM pools p JOIN pool_revisions v ON (v.pool_id, v.revision) = (p.id, p.revision)
    WHERE p.removed_at IS NULL;
