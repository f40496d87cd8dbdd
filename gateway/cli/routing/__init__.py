"""Commands about routes."""
