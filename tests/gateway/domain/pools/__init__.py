"""Tests of `gateway.domain.pools`."""
