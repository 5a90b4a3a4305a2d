"""The chat page's files: static, complete in themselves, served by `server/webpage.py`."""
