-- The service tiers that requests of a project may ask for: a higher one takes service from other projects.

ALTER TABLE projects ADD COLUMN service_tiers text[] NOT NULL DEFAULT '{default,flex}'
    CHECK (service_tiers <@ '{default,flex,priority}' AND 'default' = ANY (service_tiers));
