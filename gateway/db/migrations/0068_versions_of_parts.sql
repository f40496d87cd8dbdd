-- The versions of engines, and the protocol that each part of the installation speaks.

ALTER TABLE hosts ADD COLUMN protocol text;
ALTER TABLE journals ADD COLUMN protocol text;
ALTER TABLE replicas ADD COLUMN version text, ADD COLUMN protocol text;
