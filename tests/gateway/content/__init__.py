"""Tests of `gateway.content`."""
