"""Commands about billing."""
