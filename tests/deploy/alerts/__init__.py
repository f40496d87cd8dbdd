"""Tests of the alerting rules."""
