"""Experiments of projects over HTTP: definitions, their life, results, and what they are made of."""
