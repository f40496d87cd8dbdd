"""Prepare base models: turn a source into a folder that the engine loads. An entry point of its own."""
