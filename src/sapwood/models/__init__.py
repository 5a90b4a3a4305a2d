"""Decoder models by architecture, one file each, named as Hugging Face's model_type; shared blocks do the work."""

from sapwood.models import gemma3, llama, mistral, qwen2, qwen3
from sapwood.models.blocks import Decoder
from sapwood.models.registry import ARCHITECTURES, load_decoder

__all__ = ["ARCHITECTURES", "Decoder", "gemma3", "llama", "load_decoder", "mistral", "qwen2", "qwen3"]
