"""Accelerated operations: `api` is the vocabulary, `reference` its specification in torch; other backends must agree with it."""
