"""Models that label pairs for a student, and the file of their scores.

May import: `retrieval.config`, `retrieval.stages` and below.
"""
