"""Tests of `gateway.openai`."""
