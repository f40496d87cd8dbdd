"""SQL of adapters."""
