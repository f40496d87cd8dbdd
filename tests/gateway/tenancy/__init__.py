"""Tests of `gateway.tenancy`."""
