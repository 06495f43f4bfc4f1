"""Scorers of candidates: late dot, MaxSim, pair head, passages, summaries, and the score cache.

May import: `retrieval.retrievers` and below.
"""
