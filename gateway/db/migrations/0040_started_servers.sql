-- Servers of other makers that agents start, the adapters they are started with, and the hosts that can start them.

ALTER TABLE pool_revisions
    ADD COLUMN starts_servers boolean NOT NULL DEFAULT false,
    ADD COLUMN adapters text[] NOT NULL DEFAULT '{}';

ALTER TABLE hosts ADD COLUMN programs text[] NOT NULL DEFAULT '{}';
