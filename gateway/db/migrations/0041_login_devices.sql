-- Devices from which people have logged in have a counter of failed sign-ins of their own, so that nobody's guesses shut
-- them out.
ALTER TABLE logins ADD COLUMN device_sha256 bytea CHECK (octet_length(device_sha256) = 32);
ALTER TABLE login_failures ADD COLUMN person bytea CHECK (octet_length(person) = 32);
CREATE INDEX login_failures_by_person ON login_failures (person);
