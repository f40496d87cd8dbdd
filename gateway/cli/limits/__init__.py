"""Commands about limits."""
