"""Tests of `gateway.bench`."""
