"""Hosts, engines and clients in simulated time, whose pools are scaled and placed by the product's own decisions."""
