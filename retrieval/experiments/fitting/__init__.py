"""What the pipelines of an experiment leave open: the queries to fit on, and what was chosen.

May import: `retrieval.experiments.reuse`, `retrieval.experiments.training`, and lower rooms.
"""
