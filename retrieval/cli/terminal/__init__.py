"""What all verbs share on a terminal: options, messages, how hits and tables are printed.

May import: `retrieval.jobs` and below.
"""
