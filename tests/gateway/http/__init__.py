"""Tests of `gateway.http`."""
