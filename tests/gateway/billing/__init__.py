"""Tests of `gateway.billing`."""
