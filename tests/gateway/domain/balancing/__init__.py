"""Tests of `gateway.domain.balancing`."""
