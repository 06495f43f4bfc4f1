"""Experiments over several datasets, one after the other or as tasks of an executor.

May import: `retrieval.experiments.experiment` and what it may, `retrieval.execution`.
"""
