"""Tests of the admin API's rights."""
