"""The work of each kind of request: units that run together, and what the answer is made of.

May import: `retrieval.serving.content`, `retrieval.serving.shapes`, `retrieval.serving.work`.
"""
