"""The head of a request: its method, its path, its keys, and reasons to refuse the request before a route has it."""
