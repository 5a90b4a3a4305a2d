"""The Ollama dialect: chat, generate, and what is asked about models."""
