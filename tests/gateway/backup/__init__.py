"""Tests of `gateway.backup`."""
