"""The verbs that measure, and read what others wrote: score, diagnose, label, plot, report.

May import: `retrieval.cli.terminal`, and what `retrieval.cli` may.
"""
