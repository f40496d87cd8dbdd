"""Tests of `engine.sampling`."""
