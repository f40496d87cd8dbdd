-- The machines of a host that stands for a whole cluster, as its agent sees them, and since when they are full.

ALTER TABLE hosts ADD COLUMN nodes jsonb NOT NULL DEFAULT '[]';
ALTER TABLE replicas ADD COLUMN full_since timestamptz;
