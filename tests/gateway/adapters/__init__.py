"""Tests of `gateway.adapters`."""
