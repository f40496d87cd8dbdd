-- Experiments count units by segments.

ALTER TABLE experiment_requests
    ADD COLUMN api_key_id text,
    ADD COLUMN endpoint text,
    ADD COLUMN stream boolean,
    ADD COLUMN service_tier text,
    ADD COLUMN gateway text;

-- Units by the segments of their first request, over all days. The values that have a row are those that are counted
-- apart (`segment_values.MAX_VALUES` of each kind at most); others are counted as 'other'.
CREATE TABLE experiment_segments (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    kind           text NOT NULL CHECK (kind IN ('api_key', 'endpoint', 'stream', 'service_tier', 'gateway')),
    value          text NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    num_units      bigint NOT NULL,
    num_delivered  bigint NOT NULL,
    num_requests   bigint NOT NULL,
    PRIMARY KEY (experiment_id, kind, value, epoch, arm)
);

-- Sums over the units of each segment (`sums.Sums`), over all days.
CREATE TABLE experiment_segment_sums (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    kind           text NOT NULL,
    value          text NOT NULL,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    x              numeric NOT NULL,
    xx             numeric NOT NULL,
    xy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, kind, value, epoch, arm, metric)
);
