"""Fields of a text as JSON: the program writes the frame, the model only the values.

Run: python examples/json_extraction.py [MODEL]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sapwood.lang as sgl

LETTERS = [
    "Dear all, Maria Lopez from Lisbon will join us on the 3rd of May as a baker.",
    "Our new gardener is called Tom Reed. He lives in Leeds and starts in June.",
]


@sgl.function
def extract(s: Any, letter: str) -> dict[str, str]:
    s += 'Letter: "Anna Berg, a painter from Oslo, comes on Friday."\n{"name": "Anna Berg", "city": "Oslo", "job": "painter"}\n'
    s += f'Letter: "{letter}"\n'
    with s.var_scope("json"):
        s += '{"name": "' + sgl.gen("name", max_tokens=12, stop=['"', "\n"])
        s += '", "city": "' + sgl.gen("city", max_tokens=12, stop=['"', "\n"])
        s += '", "job": "' + sgl.gen("job", max_tokens=12, stop=['"', "\n"]) + '"}'
    return {name: s[name] for name in ("name", "city", "job")}


def main() -> None:
    with sgl.Engine(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct") as engine:
        sgl.set_default_backend(engine)
        for state in extract.run_batch([{"letter": letter} for letter in LETTERS], temperature=0):
            print(json.dumps(state.ret_value))


if __name__ == "__main__":
    main()
