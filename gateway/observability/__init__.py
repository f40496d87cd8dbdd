"""Metrics, log lines and remembered refusals: everything an operator sees of a running gateway."""
