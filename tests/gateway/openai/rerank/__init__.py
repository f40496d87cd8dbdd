"""Tests of reranking: documents ranked for a query."""
