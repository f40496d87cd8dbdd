"""Tests of `gateway.domain.routing`."""
