"""Layers that any decoder is made of: sharded weights, norms, rotary tables, embedding and head, attention, the gated MLP."""
