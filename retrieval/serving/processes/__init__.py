"""The processes of the service: one, or several over one socket, and how they end.

May import: `retrieval.serving.http`, `retrieval.serving.mcp` and below.
"""
