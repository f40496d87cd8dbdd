"""Tests of `gateway.agent`."""
