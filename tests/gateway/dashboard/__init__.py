"""Tests of `gateway.dashboard`."""
