"""Tests of `gateway.settings`."""
