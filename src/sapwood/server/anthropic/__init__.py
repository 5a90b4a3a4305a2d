"""The Anthropic dialect: messages and their token count."""
