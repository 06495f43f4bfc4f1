"""What does not go together in a training run, as rules over the facts of its section.

May import: what `retrieval.experiments.training` may, and of that room its parts.
"""
