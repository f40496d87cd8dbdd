"""Tests of `gateway.webhooks`."""
