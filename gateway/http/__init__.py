"""The HTTP server and everything around a request that is not about one API."""
