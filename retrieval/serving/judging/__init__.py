"""Judging by people: queries, pooled candidates, a log of judgements, agreement, export, the page.

Nothing of the service imports it: `retrieval.serving.settings` names what it adds.

May import: `retrieval.serving.http`, `retrieval.serving.service`, `retrieval.studies` and below.
"""
