"""Tests of a whole installation, as `lorikeet serve` starts it."""
