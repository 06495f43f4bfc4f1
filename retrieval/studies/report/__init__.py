"""Writes `report.html`, the page of an evaluation.

May import: `retrieval.experiments` and below.
"""
