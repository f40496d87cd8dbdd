"""Tests of `adapters.sandbox`."""
