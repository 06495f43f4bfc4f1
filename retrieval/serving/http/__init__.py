"""The service over HTTP: who may ask, what is read of a request, and the end points.

May import: `retrieval.serving.service`, `retrieval.serving.mcp` and below.
"""
