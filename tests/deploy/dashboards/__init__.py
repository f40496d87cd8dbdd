"""Tests of the Grafana dashboards."""
