"""Token healing on a server: the token at the border is chosen from the log-probabilities that the server reports.

Owns the question and the choice; sends nothing itself. Invariant: as in `healing`, the chosen token spells the end of the
program's text and perhaps more; where the server's words for tokens do not show that, the text stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sapwood.core.sampling import MAX_TOP_LOGPROBS
from sapwood.lang.backends.healing import Healed, choose, may_follow
from sapwood.lang.settings import GenSettings
from sapwood.lang.transcript import Prompt

LOOKS_LIKE_CONTROL = re.compile(r"<[^\s<>]{1,60}>|\[/?[A-Z_]{2,20}\]|◁")
_BROKEN = "\ufffd"


def border_question(ids: Sequence[int]) -> dict[str, Any]:
    """The body that asks what could stand in place of the last id."""
    return {
        "input_ids": list(ids[:-1]),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": MAX_TOP_LOGPROBS,
        "token_ids_logprob": [ids[-1]],
        "return_text_in_logprobs": True,
    }


def heal_remotely(prompt: Prompt, ids: Sequence[int], settings: GenSettings, answer: Mapping[str, Any]) -> Healed | None:
    """The prompt with the token that was chosen for its border; None where the border cannot be seen in the answer."""
    meta = answer["meta_info"]
    [[logprob, last_id, piece]] = meta["output_token_ids_logprobs"][0]
    if not piece or _BROKEN in piece or not prompt.partial.endswith(piece) or LOOKS_LIKE_CONTROL.fullmatch(piece):
        return None
    found, texts = {last_id: logprob}, {last_id: ""}
    for logprob, token, text in meta["output_top_logprobs"][0]:
        beyond = text[len(piece) :]
        is_plain = _BROKEN not in text and not LOOKS_LIKE_CONTROL.fullmatch(text)
        if is_plain and text.startswith(piece) and may_follow(beyond, settings):
            found[token], texts[token] = logprob, beyond
    chosen = choose(found, settings)
    return Healed([*ids[:-1], chosen], texts[chosen])
