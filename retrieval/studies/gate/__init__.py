"""Decides whether a candidate is worse than a baseline by more than a budget allows.

May import: `retrieval.jobs`, `retrieval.studies.report`.
"""
