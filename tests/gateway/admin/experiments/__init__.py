"""Tests of `gateway.admin.experiments`."""
