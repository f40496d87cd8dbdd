-- Trigger functions that tables of several domains share.

-- Announces a changed row to the caches of all gateways. Tables without a project_id announce NULL for it.
CREATE OR REPLACE FUNCTION announce_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed  jsonb;
    version  bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := to_jsonb(OLD); ELSE changed := to_jsonb(NEW); END IF;
    UPDATE installation SET change_version = change_version + 1 RETURNING change_version INTO version;
    PERFORM pg_notify('lorikeet_changes', json_build_object(
        'version', version, 'table', TG_TABLE_NAME, 'id', changed ->> 'id',
        'project_id', changed ->> 'project_id')::text);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END
$$;
