"""Tests of `gateway.backends`."""
