"""SQL of the usage ledger."""
