"""Experiments over several datasets, one after the other or as tasks; training as a task.

May import: `retrieval.experiments.experiment` and what it may, `retrieval.execution`.
"""
