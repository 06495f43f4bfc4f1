"""Scorers of candidates: late dot, MaxSim, pair head, passages, summaries, evidence, score cache.

May import: `retrieval.retrievers` and below.
"""
