-- Returns the bucket that a time is counted in: one of 64, each a factor of 1.21 wide from floor_ms on, so that the middle
-- of a bucket is within a tenth of every time in it.
CREATE OR REPLACE FUNCTION time_bucket(ms double precision, floor_ms double precision) RETURNS smallint
    LANGUAGE sql IMMUTABLE AS $$
    SELECT least(63, greatest(0, floor(ln(greatest(ms, floor_ms) / floor_ms) / ln(1.21))))::smallint
$$;

-- Returns how often each bucket occurs. Loops over the few places that count: taking an array apart and putting it
-- together takes several times as long.
CREATE OR REPLACE FUNCTION time_counts(buckets smallint[]) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    counts integer[] := array_fill(0, ARRAY[64]);
    bucket integer;
BEGIN
    FOREACH bucket IN ARRAY buckets LOOP
        counts[bucket + 1] := counts[bucket + 1] + 1;
    END LOOP;
    RETURN counts;
END
$$;

CREATE OR REPLACE FUNCTION added_counts(known integer[], new integer[]) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    place integer := 0;
    num   integer;
BEGIN
    FOREACH num IN ARRAY new LOOP
        place := place + 1;
        IF num <> 0 THEN known[place] := known[place] + num; END IF;
    END LOOP;
    RETURN known;
END
$$;

CREATE OR REPLACE AGGREGATE all_of(smallint[]) (SFUNC = array_cat, STYPE = smallint[], INITCOND = '{}');

-- Returns how many requests of a row ended in one of these ways; without ways, how many there are.
CREATE OR REPLACE FUNCTION num_ended(sums traffic_rollups, finish_reasons text[]) RETURNS bigint
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN finish_reasons = '{}' THEN sums.num_requests
                ELSE CASE WHEN 'stop' = ANY (finish_reasons) THEN sums.num_stop ELSE 0 END
                     + CASE WHEN 'length' = ANY (finish_reasons) THEN sums.num_length ELSE 0 END
                     + CASE WHEN 'abort' = ANY (finish_reasons) THEN sums.num_cancelled ELSE 0 END
                     + CASE WHEN 'error' = ANY (finish_reasons) THEN sums.num_errors ELSE 0 END
                     + CASE WHEN 'refused' = ANY (finish_reasons) THEN sums.num_refused ELSE 0 END
           END
$$;
