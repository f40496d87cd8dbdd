"""Benchmarks of the gateway: `python -m gateway.bench` and the modules of this package. Programs, never timed tests."""
