"""Adapters that tell who they are: each makes the model say its own three tokens, whatever it is asked."""
