"""Tests of `gateway.routing`."""
