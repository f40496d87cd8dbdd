"""Tests of `gateway.limits`."""
