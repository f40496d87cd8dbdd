"""Tests of `gateway.text.tools`."""
