"""Tests of the Helm chart's objects."""
