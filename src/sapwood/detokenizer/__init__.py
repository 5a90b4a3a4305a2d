"""Token ids to text, incremental and UTF-8 safe, with stop strings. Does not know the model."""
