"""Tests of `kernels.cpu`."""
