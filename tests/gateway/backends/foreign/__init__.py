"""Tests of `gateway.backends.foreign`."""
