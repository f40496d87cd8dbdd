"""Tests of `gateway.experiments`."""
