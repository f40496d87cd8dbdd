"""Tests of `lorikeet doctor`."""
