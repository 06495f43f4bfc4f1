"""The verbs that read what others wrote: score, compare, plot, report, reproduce.

May import: `retrieval.cli.terminal`, `retrieval.studies` and below.
"""
