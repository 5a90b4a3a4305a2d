"""Servers for tests of programs that use language models: a real one, and one whose answers a test writes."""
