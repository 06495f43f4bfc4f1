"""Texts made for training: queries for documents, continuations, inverse cloze.

May import: `training.batches` and below.
"""
