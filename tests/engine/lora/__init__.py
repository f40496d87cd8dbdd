"""Tests of `engine.lora`."""
