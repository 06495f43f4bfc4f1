"""Model judges for unjudged documents, and how well their labels agree with human ones.

May import: `retrieval.experiments` and below.
"""
