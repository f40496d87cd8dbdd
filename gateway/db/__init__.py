"""PostgreSQL: the pool, the schema and one module per aggregate. The only room that imports asyncpg."""
