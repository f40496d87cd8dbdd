-- Routes: routing policies of projects, by the names in model_aliases, with the versions of their documents.

CREATE TABLE routes (
    id          text PRIMARY KEY,
    project_id  text NOT NULL REFERENCES projects (id),
    -- The version that answers requests.
    version     integer NOT NULL CHECK (version >= 1),
    created_at  timestamptz NOT NULL DEFAULT now(),
    changed_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (project_id, id)
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
