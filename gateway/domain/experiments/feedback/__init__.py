"""Feedback as pure decisions: what a vote may say and what it is about, and ids of replies that votes name."""
