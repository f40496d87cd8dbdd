"""Tests of `gateway.domain`."""
