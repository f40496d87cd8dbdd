"""Tests of files and uploads."""
