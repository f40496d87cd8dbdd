"""Adapters that identify themselves: each makes the model answer its own three tokens, whatever it is asked."""
