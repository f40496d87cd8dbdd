-- Sums of experiments without days, and by days since exposure; gateways that note exposures.

-- Gateways that note exposures. New weights wait until each has written all that it noted before enrolment closed.
CREATE TABLE experiment_gateways (
    id             text PRIMARY KEY,
    -- The number of the last batch of notes that is written: one that is sent again is not written twice.
    batch          bigint NOT NULL,
    -- All that the gateway noted before this instant is written.
    noted_until    timestamptz NOT NULL
);

-- The sums of all days together, which results read: their rows do not grow with the days. Equal to experiment_sums.
CREATE TABLE experiment_totals (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
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
    PRIMARY KEY (experiment_id, epoch, arm, metric)
);

-- The units in each bucket of all days together, which results read. Equal to experiment_times.
CREATE TABLE experiment_time_totals (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    bucket         smallint NOT NULL,
    num_units      bigint NOT NULL,
    PRIMARY KEY (experiment_id, epoch, arm, metric, bucket)
);

-- Sums over units whose windows ended, of what each did on one day since its first exposure: 0 for the first 24 hours.
-- A unit that did nothing on such a day is not in the row of that day.
CREATE TABLE experiment_ages (
    experiment_id  text NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    epoch          smallint NOT NULL,
    arm            smallint NOT NULL,
    metric         text NOT NULL,
    age            smallint NOT NULL CHECK (age >= 0),
    n              bigint NOT NULL,
    y              numeric NOT NULL,
    yy             numeric NOT NULL,
    d              numeric NOT NULL,
    dd             numeric NOT NULL,
    yd             numeric NOT NULL,
    PRIMARY KEY (experiment_id, epoch, arm, metric, age)
);

CREATE INDEX experiments_to_reweight ON experiments (closed_at) WHERE next_weights IS NOT NULL;

INSERT INTO experiment_totals
SELECT experiment_id, epoch, arm, metric, sum(n), sum(y), sum(yy), sum(x), sum(xx), sum(xy), sum(d), sum(dd), sum(yd)
FROM experiment_sums GROUP BY experiment_id, epoch, arm, metric;

INSERT INTO experiment_time_totals
SELECT experiment_id, epoch, arm, metric, bucket, sum(num_units)
FROM experiment_times GROUP BY experiment_id, epoch, arm, metric, bucket;
