"""Training data that a language model writes or ranks: queries, descriptions, texts, full rankings.

May import: what `retrieval.training_data` may, and its `files` and `teachers`.
"""
