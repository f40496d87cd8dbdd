"""Tests of `engine.grammar`."""
