"""PostgreSQL as a process: the embedded server, the place of its data, and dumps."""
