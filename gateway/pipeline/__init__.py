"""The one way to run a request, called by every API."""
