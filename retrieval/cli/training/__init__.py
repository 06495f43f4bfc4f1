"""The verbs that make what is trained on, fit what stages read, and change models.

May import: `retrieval.cli.terminal`, and what `retrieval.cli` may.
"""
