"""Examples to train on: from judgements, files, mining, generation.

May import: `retrieval.config`, `retrieval.stages` and below.
"""
