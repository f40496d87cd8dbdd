"""`python -m gateway.bench.foreign`: what a gateway adds to a server of another maker."""
