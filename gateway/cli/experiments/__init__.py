"""Commands about experiments."""
