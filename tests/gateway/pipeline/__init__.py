"""Tests of `gateway.pipeline`."""
