"""Feedback as pure decisions: what a vote may say and what it is about, ids of replies that votes name, and what the
votes of people and of a judge come to together."""
