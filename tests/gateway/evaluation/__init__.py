"""Tests of gateway.evaluation."""
