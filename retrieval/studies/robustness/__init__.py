"""Stress tests: how typos and perturbed documents change a pipeline's results.

May import: `retrieval.experiments` and below.
"""
