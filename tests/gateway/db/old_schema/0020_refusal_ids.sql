-- What the API shows of a refusal and pages by. Its `id`, by which lists are in order, counts those of all organizations.
ALTER TABLE refusals
    ADD COLUMN public_id text NOT NULL UNIQUE DEFAULT 'ref_' || replace(gen_random_uuid()::text, '-', '');
