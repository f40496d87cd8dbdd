"""Tests of `gateway.agent.ray`."""
