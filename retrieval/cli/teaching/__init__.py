"""The verbs that make what is trained on: negatives, scores, queries, descriptions, labels.

May import: `retrieval.cli.terminal`, and what `retrieval.cli` may.
"""
