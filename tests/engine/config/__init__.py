"""Tests of `engine.config`."""
