"""The verbs on a retriever's folder or an experiment's output: search, explain, change, serve.

May import: `retrieval.cli.terminal`, and what `retrieval.cli` may.
"""
