"""Sapwood: an LLM serving engine."""
