"""Routes of projects over HTTP."""
