-- Routes: routing policies, with the versions of their documents: of projects, by the names in model_aliases, and of
-- organizations, for all their projects that have no name of their own like it.

CREATE TABLE routes (
    id               text PRIMARY KEY,
    -- The project that owns the route; NULL: its organization does.
    project_id       text REFERENCES projects (id),
    -- The version that answers requests.
    version          integer NOT NULL CHECK (version >= 1),
    created_at       timestamptz NOT NULL DEFAULT now(),
    changed_at       timestamptz NOT NULL DEFAULT now(),
    -- The organization that owns the route, and the route's name there; NULL of a project's route.
    organization_id  text REFERENCES organizations (id),
    name             text,
    UNIQUE (project_id, id),
    UNIQUE (organization_id, name),
    CONSTRAINT routes_owner CHECK (num_nonnulls(project_id, organization_id) = 1
                                   AND (organization_id IS NULL) = (name IS NULL))
);

-- Documents are never changed; of a route the oldest ones go when there are too many.
CREATE TABLE route_versions (
    route_id    text NOT NULL REFERENCES routes (id) ON DELETE CASCADE,
    version     integer NOT NULL CHECK (version >= 1),
    -- The policy as JSON text, as gateway.domain.routing.policy.document reads it.
    document    text NOT NULL CHECK (octet_length(document) <= 131072),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (route_id, version)
);

ALTER TABLE routes ADD FOREIGN KEY (id, version) REFERENCES route_versions (route_id, version)
    DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE model_aliases ADD FOREIGN KEY (project_id, route_id) REFERENCES routes (project_id, id);
