"""Backend: our own engine."""
