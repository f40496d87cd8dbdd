"""Verbs about pools: their base models, replicas and hosts, and the projects that may use them."""
