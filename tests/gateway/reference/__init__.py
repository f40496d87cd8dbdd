"""Tests of `gateway.reference`."""
