-- Hosts that stand for a whole cluster, in which something else chooses the machines of engines.

ALTER TABLE hosts ADD COLUMN placement text NOT NULL DEFAULT 'local' CHECK (placement IN ('local', 'ray'));
