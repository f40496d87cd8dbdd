"""Verbs about pools: what base models run, how often, on which hosts, and who may use them."""
