"""Tests of `gateway.text`."""
