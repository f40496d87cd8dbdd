"""Tests of `gateway.exports`."""
