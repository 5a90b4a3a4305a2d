"""API speculation: three fields, one call of the API, as long as the model keeps to the format.

Run: python examples/speculative_calls.py [BASE_URL] (any OpenAI-compatible server, such as scripts/serve)
"""

from __future__ import annotations

import sys
from typing import Any

import sapwood.lang as sgl


@sgl.function(num_api_spec_tokens=96)
def character(s: Any) -> None:
    s += "Name: Ada Lovelace\nBorn: 1815\nJob: mathematician\n\nName: Jane Austen\nBorn: 1775\nJob: writer\n\n"
    s += "Name:" + sgl.gen("name", stop="\n") + "\nBorn:" + sgl.gen("born", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1"
    model = sgl.get_server_info(sgl.OpenAI("", base_url=base_url, api_key="none")) or {}
    backend = sgl.OpenAI(model["models"][0], is_chat_model=False, base_url=base_url, api_key="none")
    state = character.run(backend=backend, temperature=0)
    saved = sum("speculated" in state.get_meta_info(name) for name in ("name", "born", "job"))
    print({name: state[name].strip() for name in ("name", "born", "job")})
    print(f"3 generations, {saved} of them without a call; completion tokens of the first call are shared")


if __name__ == "__main__":
    main()
