"""Decoders by architecture, their weights and positions. One file serves the whole Llama family."""
