"""Tests of `gateway.messages`."""
