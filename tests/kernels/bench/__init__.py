"""Tests of `kernels.bench`."""
