"""What all verbs share on a terminal: options, messages, and how hits are printed.

May import: `retrieval.pipelines` and below.
"""
