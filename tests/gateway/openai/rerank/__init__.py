"""Documents ranked for a query."""
