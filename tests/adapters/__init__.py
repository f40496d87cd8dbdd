"""Tests of `adapters`."""
