#!/bin/bash
# Makes the role of gateways and agents when the database is new. Its password is never an argument of a process.
set -euo pipefail
psql --set ON_ERROR_STOP=1 --username lorikeet_owner --dbname lorikeet <<SQL
CREATE ROLE lorikeet_runtime LOGIN PASSWORD '$(cat /run/secrets/database-runtime-password)';
SQL
