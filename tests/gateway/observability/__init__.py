"""Tests of `gateway.observability`."""
