-- Routes: routing policies of projects, which share the names of aliases and experiments.

ALTER TABLE model_aliases
    ADD COLUMN route_id text,
    DROP CONSTRAINT model_aliases_target_kind_check,
    DROP CONSTRAINT model_aliases_target_check,
    ADD CONSTRAINT model_aliases_target_kind_check CHECK (target_kind IN ('version', 'pool', 'experiment', 'route')),
    ADD CONSTRAINT model_aliases_target_check CHECK (
        (target_kind = 'version') = (adapter_id IS NOT NULL) AND (adapter_id IS NULL) = (version IS NULL)
        AND CASE target_kind WHEN 'pool' THEN pool_id IS NOT NULL WHEN 'version' THEN true ELSE pool_id IS NULL END
        AND (target_kind = 'experiment') = (experiment_id IS NOT NULL)
        AND (target_kind = 'route') = (route_id IS NOT NULL));

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
