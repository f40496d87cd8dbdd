"""Tests of `gateway.domain.tracing`."""
