-- Routes of organizations, for all their projects.

ALTER TABLE routes
    ALTER COLUMN project_id DROP NOT NULL,
    ADD COLUMN organization_id text REFERENCES organizations (id),
    ADD COLUMN name text,
    ADD UNIQUE (organization_id, name),
    ADD CONSTRAINT routes_owner CHECK (num_nonnulls(project_id, organization_id) = 1
                                       AND (organization_id IS NULL) = (name IS NULL));
