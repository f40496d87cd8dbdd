"""Tests of `gateway.domain.experiments`."""
