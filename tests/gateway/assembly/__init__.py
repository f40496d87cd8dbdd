"""Tests of `gateway.assembly`."""
