"""Tests of `gateway.admin`."""
