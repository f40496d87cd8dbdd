"""Tests of `gateway.db`."""
