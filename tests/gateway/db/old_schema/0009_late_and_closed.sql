-- Closed months keep Stripe's customers, and days that were delivered are watched for rows that come late.

-- Whom Stripe billed for a project when the month was closed: its files name these whatever changes later.
CREATE TABLE period_stripe_customers (
    organization_id  text NOT NULL,
    period           date NOT NULL,
    project_id       text NOT NULL,
    customer_id      text NOT NULL,
    PRIMARY KEY (organization_id, period, project_id)
);

INSERT INTO period_stripe_customers (organization_id, period, project_id, customer_id)
SELECT c.organization_id, b.start, c.project_id, c.customer_id
FROM stripe_customers c JOIN billing_periods b ON b.organization_id = c.organization_id;

CREATE FUNCTION keep_period_customers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO period_stripe_customers (organization_id, period, project_id, customer_id)
    SELECT c.organization_id, NEW.start, c.project_id, c.customer_id
    FROM stripe_customers c WHERE c.organization_id = NEW.organization_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER billing_periods_keep_customers AFTER INSERT ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION keep_period_customers();
CREATE TRIGGER period_stripe_customers_stay BEFORE UPDATE OR DELETE ON period_stripe_customers
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- What the ledger has of a day's usage, by when it was created, as text to compare: it differs once rows have come. Every
-- row is in the roll-ups or in their queue, and one statement sees it in one of them.
CREATE FUNCTION day_sums(the_organization text, the_day date) RETURNS text LANGUAGE sql STABLE AS $$
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

-- sums: of the day, before it was last delivered. checked_at: when these were last held against those there are.
ALTER TABLE delivery_runs ADD COLUMN sums text;
ALTER TABLE delivery_runs ADD COLUMN checked_at timestamptz;
