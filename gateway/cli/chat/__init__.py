"""Commands about chat completions."""
