"""Tests of `gateway.openai.responses`."""
