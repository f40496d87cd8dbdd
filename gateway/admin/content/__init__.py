"""Admin API routes that show the content of requests: logged, or stored as responses and conversations."""
