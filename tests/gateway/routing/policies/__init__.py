"""Tests of routing policies over running gateways."""
