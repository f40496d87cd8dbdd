"""Small helpers that know nothing of the gateway's subjects."""
