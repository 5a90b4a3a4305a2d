"""What a model's text means: its reasoning, its calls of tools, and the rest, while it is still being written."""
