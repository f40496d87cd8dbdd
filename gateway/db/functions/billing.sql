-- Returns the first month that is open; '-infinity' before any was closed.
CREATE OR REPLACE FUNCTION open_from(the_organization text) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT coalesce((max(start) + interval '1 month')::date, '-infinity'::date) FROM billing_periods
    WHERE organization_id = the_organization
$$;

CREATE OR REPLACE FUNCTION month_of(instant timestamptz) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date_trunc('month', instant AT TIME ZONE 'UTC')::date
$$;

-- Returns the price in force for a row: of the entries that match, the most specific one, the model counting first.
-- Without an entry the row costs nothing.
CREATE OR REPLACE FUNCTION price_of(
    the_organization text, the_project text, the_model text, the_class text, the_tier text, instant timestamptz,
    OUT version integer, OUT input_nanos bigint, OUT cached_input_nanos bigint, OUT output_nanos bigint,
    OUT basis_points integer
) LANGUAGE sql STABLE AS $$
    SELECT v.version, coalesce(p.input_nanos, 0), coalesce(p.cached_input_nanos, 0), coalesce(p.output_nanos, 0),
           coalesce(d.basis_points, 0)
    FROM (
        SELECT max(b.version) AS version FROM price_versions b
        WHERE b.organization_id = the_organization AND b.effective_at <= instant
    ) v
    LEFT JOIN LATERAL (
        SELECT e.input_nanos / h.parts AS input_nanos, e.cached_input_nanos / h.parts AS cached_input_nanos,
               e.output_nanos / h.parts AS output_nanos
        FROM prices e
             -- Half, for a request of a batch that no entry for batches matches.
             CROSS JOIN LATERAL (
                 SELECT CASE WHEN the_tier = 'batch' AND e.service_tier <> 'batch' THEN 2 ELSE 1 END AS parts) h
        WHERE e.organization_id = the_organization AND e.version = v.version
            AND e.model IN (the_model, split_part(the_model, ':', 1), '*')
            AND e.adapter_class IN (the_class, '*')
            AND (e.service_tier IN (the_tier, '*') OR (the_tier = 'batch' AND e.service_tier = 'default'))
        ORDER BY h.parts, e.model = the_model DESC, e.model <> '*' DESC, e.adapter_class <> '*' DESC, e.service_tier <> '*' DESC
        LIMIT 1
    ) p ON true
    LEFT JOIN price_discounts d ON d.organization_id = the_organization AND d.version = v.version
        AND d.project_id = the_project
$$;

-- Returns the cost of a row with one rounding, half up: each kind of tokens gets what the running sum grows by when the
-- kind is added. Multiplies rather than divides, since that is exact.
CREATE OR REPLACE FUNCTION cost_of(
    uncached_tokens bigint, cached_tokens bigint, output_tokens bigint,
    input_nanos bigint, cached_input_nanos bigint, output_nanos bigint, basis_points integer,
    OUT input_cost_nanos bigint, OUT cached_cost_nanos bigint, OUT output_cost_nanos bigint,
    OUT cost_nanos bigint, OUT list_cost_nanos bigint
) LANGUAGE sql IMMUTABLE AS $$
    SELECT r.input, r.cached - r.input, r.total - r.cached, r.total, r.list
    FROM (
        SELECT round(s.input * s.part)::bigint AS input, round((s.input + s.cached) * s.part)::bigint AS cached,
               round((s.input + s.cached + s.output) * s.part)::bigint AS total,
               round((s.input + s.cached + s.output) * 0.000001)::bigint AS list
        FROM (
            SELECT uncached_tokens::numeric * input_nanos AS input, cached_tokens::numeric * cached_input_nanos AS cached,
                   output_tokens::numeric * output_nanos AS output, (10000 - basis_points) * 0.0000000001 AS part
        ) s
    ) r
$$;

-- Returns what open periods cost, of a project or, with NULL, of every project. Every row of the ledger is in the sums or
-- in their queue, and a statement sees it in one of the two.
CREATE OR REPLACE FUNCTION open_costs(the_organization text, the_project text)
    RETURNS TABLE (project_id text, cost_nanos numeric) LANGUAGE sql STABLE AS $$
    SELECT s.project_id, sum(s.cost_nanos) FROM (
        SELECT p.project_id, p.cost_nanos FROM period_sums p
        WHERE p.organization_id = the_organization AND p.period >= open_from(the_organization)
        UNION ALL
        SELECT q.project_id, q.cost_nanos FROM rollup_queue q
        WHERE q.organization_id = the_organization AND q.period >= open_from(the_organization)
    ) s
    WHERE the_project IS NULL OR s.project_id = the_project
    GROUP BY s.project_id
$$;

-- Returns balances, of prepaid projects and of others; a negative one is owed.
CREATE OR REPLACE FUNCTION balances(the_organization text, the_project text)
    RETURNS TABLE (project_id text, nanos numeric) LANGUAGE sql STABLE AS $$
    SELECT s.project_id, sum(s.nanos) FROM (
        SELECT g.project_id, g.amount_nanos - coalesce(g.lapsed_nanos, 0) AS nanos FROM credit_grants g
        WHERE g.organization_id = the_organization
        UNION ALL
        SELECT g.project_id, -d.amount_nanos FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
        WHERE g.organization_id = the_organization
        UNION ALL
        SELECT o.project_id, -o.cost_nanos FROM open_costs(the_organization, the_project) o
    ) s
    WHERE the_project IS NULL OR s.project_id = the_project
    GROUP BY s.project_id
$$;

-- Returns the sums of a day's usage, by the time of usage, as text to compare: the text differs once more rows have
-- come. Every row is in the roll-ups or in their queue, and one statement sees it in one of the two.
CREATE OR REPLACE FUNCTION day_sums(the_organization text, the_day date) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT ARRAY[sum(s.num_requests), sum(s.prompt_tokens), sum(s.cached_tokens), sum(s.completion_tokens),
                 sum(s.cost_nanos)]::text
    FROM (
        SELECT r.num_requests, r.prompt_tokens, r.cached_tokens, r.completion_tokens, r.cost_nanos
        FROM usage_rollups r
        WHERE r.organization_id = the_organization AND r.width = 'day'
            AND r.bucket = the_day::timestamp AT TIME ZONE 'UTC'
        UNION ALL
        SELECT q.num_requests, q.prompt_tokens, q.cached_tokens, q.completion_tokens, q.cost_nanos
        FROM rollup_queue q
        WHERE q.organization_id = the_organization AND q.minute >= the_day::timestamp AT TIME ZONE 'UTC'
            AND q.minute < (the_day + 1)::timestamp AT TIME ZONE 'UTC'
    ) s
$$;

-- A version of the price book may be withdrawn before it is in force, when no row of the ledger names it yet. A version
-- that is or was in force stays.
CREATE OR REPLACE FUNCTION keep_prices() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- Takes back a version that is not in force yet. Runs as the owner of the tables: gateways may not delete prices.
CREATE OR REPLACE FUNCTION withdraw_prices(the_organization text, the_version integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    DELETE FROM prices WHERE organization_id = the_organization AND version = the_version;
    DELETE FROM price_discounts WHERE organization_id = the_organization AND version = the_version;
    DELETE FROM price_versions WHERE organization_id = the_organization AND version = the_version;
END
$$;

CREATE OR REPLACE TRIGGER price_versions_changed
    AFTER INSERT OR DELETE ON price_versions FOR EACH ROW EXECUTE FUNCTION announce_change();

-- A month that is closed remembers names, the currency and Stripe's customers as they are at that moment.
CREATE OR REPLACE FUNCTION keep_period_names() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO period_names (organization_id, period, object_id, name)
    SELECT o.id, NEW.start, o.id, o.name FROM organizations o WHERE o.id = NEW.organization_id
    UNION ALL
    SELECT NEW.organization_id, NEW.start, 'currency',
           coalesce((SELECT v.currency FROM price_versions v WHERE v.organization_id = NEW.organization_id LIMIT 1), 'usd')
    UNION ALL
    SELECT p.organization_id, NEW.start, p.id, coalesce(p.archived_name, p.name)
    FROM projects p WHERE p.organization_id = NEW.organization_id;
    INSERT INTO period_stripe_customers (organization_id, period, project_id, customer_id)
    SELECT c.organization_id, NEW.start, c.project_id, c.customer_id
    FROM stripe_customers c WHERE c.organization_id = NEW.organization_id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER billing_periods_keep_names AFTER INSERT ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION keep_period_names();

CREATE OR REPLACE TRIGGER period_names_stay BEFORE UPDATE OR DELETE ON period_names
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER period_stripe_customers_stay BEFORE UPDATE OR DELETE ON period_stripe_customers
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER credit_draws_stay BEFORE UPDATE OR DELETE ON credit_draws
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER invoices_stay BEFORE UPDATE OR DELETE ON invoices
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
