-- A change of a pool's base model that adapters do not survive has to be confirmed.

ALTER TABLE pool_revisions ADD COLUMN allow_unfit_adapters boolean NOT NULL DEFAULT false;
