"""Tests of `gateway`."""
