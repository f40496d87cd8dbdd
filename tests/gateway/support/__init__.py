"""Tests of `gateway.support`."""
