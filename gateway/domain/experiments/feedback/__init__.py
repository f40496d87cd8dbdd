"""Feedback as pure decisions: votes and their subjects, ids of replies that votes name, and the results of votes.

Votes of people and of a judge come to results together.
"""
