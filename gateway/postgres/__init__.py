"""PostgreSQL as a process: the embedded server, where its data lies, and dumps."""
