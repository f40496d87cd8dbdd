"""Hostile adapters: files that strangers might upload, and how to send many of them to an inspection."""
