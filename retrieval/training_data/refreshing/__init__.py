"""Negatives that are mined again while a model is trained: when, and by whom.

May import: `retrieval.execution`, `retrieval.config`, `training`, `encoders`.
"""
