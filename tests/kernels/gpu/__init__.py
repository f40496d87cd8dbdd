"""Tests of `kernels.gpu`."""
