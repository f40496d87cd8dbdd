-- What was taken in of the watched folder, so that nothing happens to what has not changed, also after a restart.
-- fingerprint: of the files' bytes, or of the files themselves where these are not even read.
CREATE TABLE watched_adapters (
    project_id   text NOT NULL REFERENCES projects (id),
    name         text NOT NULL,
    fingerprint  text NOT NULL,
    taken_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

-- Whose a tenant's folder is: settled when it is first taken from, so that another project that comes to have its name,
-- of another organization perhaps, gets nothing.
CREATE TABLE watched_tenants (
    folder      text PRIMARY KEY,
    project_id  text NOT NULL REFERENCES projects (id),
    bound_at    timestamptz NOT NULL DEFAULT now()
);
