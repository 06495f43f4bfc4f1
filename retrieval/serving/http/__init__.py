"""The service over HTTP: who may ask, what is read of a request, the end points, and the page.

May import: `retrieval.serving.service`, `retrieval.serving.mcp`, `retrieval.serving.settings` and
below.
"""
