"""All fuzz targets by name."""

from __future__ import annotations

import targets_files
import targets_messages
import targets_text
from fuzzing import Target

TARGETS: dict[str, Target] = {
    "gguf": targets_files.gguf,
    "safetensors": targets_files.safetensors,
    "tokenizer": targets_files.tokenizer,
    "template": targets_text.template,
    "stops": targets_text.stops,
    "detokenizer": targets_text.detokenizer,
    "messages": targets_messages.messages,
    "cache_files": targets_messages.cache_files,
    "step_logs": targets_messages.step_logs,
    "flights": targets_messages.flights,
}
