"""Tests of `engine.cpu`."""
