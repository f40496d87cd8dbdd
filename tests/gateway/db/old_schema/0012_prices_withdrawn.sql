-- A version of the price book may be withdrawn as long as it is not in force: no row of the ledger names it yet. What is
-- or was in force stays.

CREATE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT FROM price_versions v
        WHERE v.organization_id = OLD.organization_id AND v.version = OLD.version AND v.effective_at > clock_timestamp()
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE TRIGGER price_versions_stay BEFORE UPDATE OR DELETE ON price_versions
    FOR EACH ROW EXECUTE FUNCTION keep_prices();
CREATE OR REPLACE TRIGGER prices_stay BEFORE UPDATE OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION keep_prices();
CREATE OR REPLACE TRIGGER price_discounts_stay BEFORE UPDATE OR DELETE ON price_discounts
    FOR EACH ROW EXECUTE FUNCTION keep_prices();

CREATE FUNCTION announce_withdrawn_prices() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    version  bigint;
BEGIN
    UPDATE installation SET change_version = change_version + 1 RETURNING change_version INTO version;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', version, 'table', TG_TABLE_NAME, 'id', OLD.id, 'project_id', NULL)::text);
    RETURN NULL;
END
$$;

CREATE TRIGGER price_versions_withdrawn
    AFTER DELETE ON price_versions FOR EACH ROW EXECUTE FUNCTION announce_withdrawn_prices();
