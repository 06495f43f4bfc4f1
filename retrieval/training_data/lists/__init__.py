"""The lists that negatives come from: searched by tasks, with the scores of positives they lack.

May import: `execution`, `pipelines`, `retrievers` and below.
"""
