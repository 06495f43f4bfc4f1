"""Judging by people: queries, pooled candidates, a log of judgements, agreement and export.

May import: `retrieval.studies` and below, `retrieval.serving.content`, `retrieval.serving.faults`,
`retrieval.serving.settings`.
"""
