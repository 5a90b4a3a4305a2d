"""RoPE settings of a Hugging Face configuration -> `RopeConfig`, in all the spellings that config.json has had.

Owns the names and defaults of the scaling kinds. Does not know layers or frequencies. Invariant: what comes out is fully
resolved (YaRN's attention factor included); a kind that Sapwood does not compute is refused by name.
"""

from __future__ import annotations

import math

from sapwood.core.model_config import RopeConfig
from sapwood.errors import WeightsError
from sapwood.weights.fields import Fields

BETA_FAST, BETA_SLOW = 32.0, 1.0
KINDS = ("default", "linear", "llama3", "yarn")


def yarn_rope(
    theta: float,
    factor: float,
    original_max_position: int,
    attention_factor: float | None = None,
    beta_fast: float = BETA_FAST,
    beta_slow: float = BETA_SLOW,
) -> RopeConfig:
    """YaRN; without an `attention_factor` it is the usual 0.1 ln(factor) + 1."""
    resolved = yarn_magnitude(factor) if attention_factor is None else attention_factor
    params = (
        ("factor", factor),
        ("beta_fast", beta_fast),
        ("beta_slow", beta_slow),
        ("original_max_position", float(original_max_position)),
        ("attention_factor", resolved),
    )
    return RopeConfig("yarn", theta, params)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's correction of the attention's magnitude for a context stretched by `factor`."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def read_rope(fields: Fields, layer_type: str, default_theta: float) -> RopeConfig:
    """The RoPE of layers of `layer_type` ("full_attention" or "sliding_attention") in the configuration `fields`.

    Understands `rope_theta` with `rope_scaling`, and `rope_parameters`, flat or with one entry per layer type.
    """
    params = fields.section("rope_parameters") or fields.section("rope_scaling") or Fields({}, fields.source)
    params = params.section(layer_type) or params
    theta = params.positive("rope_theta", fields.positive("rope_theta", default_theta))
    kind = params.text("rope_type", params.get("type", "default"))
    for holder in (fields, params):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise WeightsError(f"{fields.source}: partial rotary embedding is not supported; choose another model")
    if kind not in KINDS:
        raise WeightsError(f"{fields.source}: the rope scaling {kind!r} is not supported; supported: {', '.join(KINDS)}")
    if kind == "default":
        return RopeConfig("default", theta)
    if kind == "linear":
        return RopeConfig("linear", theta, (("factor", params.positive("factor")),))
    original = params.size("original_max_position_embeddings", fields.size("max_position_embeddings"))
    return _llama3_rope(params, theta, original) if kind == "llama3" else _yarn_rope(params, theta, original)


def _llama3_rope(params: Fields, theta: float, original_max_position: int) -> RopeConfig:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    numbers = tuple((name, params.positive(name)) for name in names)
    return RopeConfig("llama3", theta, (*numbers, ("original_max_position", float(original_max_position))))


def _yarn_rope(params: Fields, theta: float, original_max_position: int) -> RopeConfig:
    if not params.flag("truncate", True):
        raise WeightsError(f"{params.source}: YaRN without truncation is not supported; choose another model")
    factor = params.positive("factor")
    attention_factor = params.positive("attention_factor") if params.has("attention_factor") else None
    mscale, mscale_all_dim = params.number("mscale", 0.0), params.number("mscale_all_dim", 0.0)
    if attention_factor is None and mscale and mscale_all_dim:
        attention_factor = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
    beta_fast, beta_slow = params.positive("beta_fast", BETA_FAST), params.positive("beta_slow", BETA_SLOW)
    return yarn_rope(theta, factor, original_max_position, attention_factor, beta_fast, beta_slow)
