"""Tests of `engine.scheduling`."""
