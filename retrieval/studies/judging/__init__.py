"""Model judges for unjudged documents, and how far their labels agree with people's.

May import: `retrieval.experiments` and below.
"""
