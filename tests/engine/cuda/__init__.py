"""Tests of `engine.cuda`."""
