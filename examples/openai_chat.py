"""Talk to a running server through the official openai client.

Run: scripts/serve (in another terminal), then python examples/openai_chat.py [BASE_URL]
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1"
    client = OpenAI(base_url=base_url, api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three trees."}],
        max_tokens=48,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n({chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} completion tokens)")


if __name__ == "__main__":
    main()
