"""Decoders by architecture. One file serves the whole Llama family."""
