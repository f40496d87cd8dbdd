"""Tests of `gateway.serve`."""
