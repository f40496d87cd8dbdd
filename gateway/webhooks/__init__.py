"""Sends queued webhook messages to the URLs that operators set."""
