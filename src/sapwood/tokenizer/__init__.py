"""Text to token ids and chat messages to prompts. Knows vocabularies and templates; does not know requests' fates."""
