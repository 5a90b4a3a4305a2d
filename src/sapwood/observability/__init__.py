"""What the processes say about themselves: log lines and metrics. Knows nothing of what it logs or counts; imports no torch."""
