-- Exports: names as a closed month had them, Stripe's customers, and where exports are delivered to.

-- What was called how when the month was closed, and its currency: its files show these whatever changes later.
CREATE TABLE period_names (
    organization_id  text NOT NULL,
    period           date NOT NULL,
    object_id        text NOT NULL,
    name             text NOT NULL,
    PRIMARY KEY (organization_id, period, object_id)
);

CREATE FUNCTION keep_period_names() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO period_names (organization_id, period, object_id, name)
    SELECT o.id, NEW.start, o.id, o.name FROM organizations o WHERE o.id = NEW.organization_id
    UNION ALL
    SELECT NEW.organization_id, NEW.start, 'currency',
           coalesce((SELECT v.currency FROM price_versions v WHERE v.organization_id = NEW.organization_id LIMIT 1), 'usd')
    UNION ALL
    SELECT p.organization_id, NEW.start, p.id, coalesce(p.archived_name, p.name) FROM projects p WHERE p.organization_id = NEW.organization_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER billing_periods_keep_names AFTER INSERT ON billing_periods
    FOR EACH ROW EXECUTE FUNCTION keep_period_names();
CREATE TRIGGER period_names_stay BEFORE UPDATE OR DELETE ON period_names
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- Whom Stripe bills for a project.
CREATE TABLE stripe_customers (
    organization_id  text NOT NULL,
    project_id       text PRIMARY KEY,
    customer_id      text NOT NULL CHECK (customer_id ~ '^cus_[A-Za-z0-9_]{1,64}$'),
    FOREIGN KEY (organization_id, project_id) REFERENCES projects (organization_id, id) ON DELETE CASCADE
);

-- Exports that are delivered again and again: of each day once it is over, or of each month once it is closed.
-- secret: the object store's secret key; NULL for a folder. from_period: the first day or month to deliver.
CREATE TABLE deliveries (
    id               text PRIMARY KEY,
    organization_id  text NOT NULL REFERENCES organizations (id) ON DELETE CASCADE,
    name             text NOT NULL,
    kind             text NOT NULL,
    format           text NOT NULL,
    schedule         text NOT NULL CHECK (schedule IN ('daily', 'monthly')),
    destination      jsonb NOT NULL,
    secret           text,
    from_period      date NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (organization_id, name)
);

-- One row per delivery and period. due_at: of the next attempt.
CREATE TABLE delivery_runs (
    delivery_id   text NOT NULL REFERENCES deliveries (id) ON DELETE CASCADE,
    period        text NOT NULL,
    attempts      integer NOT NULL DEFAULT 0,
    due_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at  timestamptz,
    last_error    text,
    PRIMARY KEY (delivery_id, period)
);

CREATE INDEX delivery_runs_due ON delivery_runs (due_at) WHERE delivered_at IS NULL;
