"""Tests of `gateway.observability.tracing`."""
