-- The rights of the role that gateways and agents use. The role that owns the tables is for migrations, backups and
-- restores alone.

-- Gives a role the rights of a gateway on all tables, and takes all others from it. What rests on never being changed, the
-- audit log, the ledger and its invoices, and the price book, it may only read and add to: a trigger that refuses changes
-- can be turned off by the owner of its table, and by nobody else. Partitions are reached by their table alone.
CREATE OR REPLACE FUNCTION grant_to_runtime(runtime name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    added_to   name[] := '{audit_log,ledger,price_versions,prices,price_discounts,period_names,period_stripe_customers,
                           credit_draws,invoices}';
    the_table  record;
    rights     text;
BEGIN
    LOCK TABLE ONLY ledger IN SHARE UPDATE EXCLUSIVE MODE;  -- nobody attaches a partition meanwhile
    EXECUTE format('GRANT USAGE ON SCHEMA public TO %I', runtime);
    FOR the_table IN
        SELECT c.relname AS name, c.relkind AS kind FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
            AND c.relowner = (SELECT relowner FROM pg_class WHERE oid = 'ledger'::regclass)
        ORDER BY c.relname
    LOOP
        rights := CASE
            WHEN the_table.kind = 'v' OR the_table.name = 'schema_migrations' THEN 'SELECT'
            WHEN the_table.name = ANY (added_to) THEN 'SELECT, INSERT'
            ELSE 'SELECT, INSERT, UPDATE, DELETE'
        END;
        EXECUTE format('REVOKE ALL ON %I FROM %I', the_table.name, runtime);
        EXECUTE format('GRANT %s ON %I TO %I', rights, the_table.name, runtime);
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON FUNCTION ensure_ledger_day, correct_usage, hold_ledger, withdraw_prices TO %I', runtime);
END
$$;

REVOKE EXECUTE ON FUNCTION ensure_ledger_day, correct_usage, hold_ledger, withdraw_prices FROM PUBLIC;
