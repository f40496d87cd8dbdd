"""From the model string of a request to what serves it."""
