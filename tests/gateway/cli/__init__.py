"""Tests of `gateway.cli`."""
