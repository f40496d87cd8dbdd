"""What is counted for whom: usage events from the engine's exact counts to the ledger."""
