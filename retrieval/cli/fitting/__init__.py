"""The verbs under `sluice fit`: what stages read, small models, and the quality of documents.

May import: `retrieval.cli.terminal`, and what `retrieval.cli` may.
"""
