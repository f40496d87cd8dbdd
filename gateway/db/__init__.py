"""PostgreSQL: the pool, the schema and one module per aggregate. The only room that imports asyncpg.

The schema consists of files: `schema/` has the tables, `functions/` all functions, triggers and views, `migrations/`
numbered changes of the tables from 0001 on (`migrate`, `schema_files`). `conversion` converts a database from before
this numbering, if its last migration is 0021_thin_traffic.

One statement, several times a second, finds the work that waits in tables (`due_work`): its workers, in rooms above,
ask nothing while nothing waits. Changes of the rows that gateways cache are announced as they commit (`changes`).
"""
