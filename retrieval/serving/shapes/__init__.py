"""What requests and answers look like: models that check each field and name it in errors.

May import: `retrieval.serving.faults`.
"""
