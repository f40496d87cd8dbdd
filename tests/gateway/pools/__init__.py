"""Tests of `gateway.pools`."""
