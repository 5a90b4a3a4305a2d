"""An agent with two tools that it calls at once, streamed: python weather_agent.py [base_url] [question]

Start a server first: sapwood serve --model-path qwen2.5-coder-0.5b-instruct
"""

import json
import sys

import openai

BASE_URL = "http://127.0.0.1:30000/v1"
QUESTION = "How is the weather in Paris and Oslo on Friday? Add a picnic on Friday to my calendar."
SYSTEM = "You plan days. Call get_weather once for each city, and add_event for each event, all of them at once."
FORECASTS = {"Paris": "sunny, 24 degrees"}
calendar = []


def get_weather(city: str, day: str) -> str:
    return f"{city} on {day}: {FORECASTS.get(city, 'cloudy, 15 degrees')}"


def add_event(title: str, day: str) -> str:
    calendar.append(f"{day}: {title}")
    return f"added {title} on {day}"


def tool(function, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": function.__name__, "parameters": schema}}


TEXT = {"type": "string", "maxLength": 40}
DAY = {"enum": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]}
TOOLS = [tool(get_weather, city=TEXT, day=DAY), tool(add_event, title=TEXT, day=DAY)]


def ask(client, messages, **fields):
    """One answer, printed while it comes."""
    model = client.models.list().data[0].id
    with client.chat.completions.stream(model=model, messages=messages, temperature=0, max_tokens=200, **fields) as stream:
        for event in stream:
            print(event.delta if event.type == "content.delta" else "", end="", flush=True)
        return stream.get_final_completion().choices[0].message


def main(base_url=BASE_URL, question=QUESTION):
    client = openai.OpenAI(base_url=base_url, api_key="none")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    asked = ask(client, messages, tools=TOOLS, tool_choice="required")
    messages.append(asked)
    for call in asked.tool_calls:
        print(f"-> {call.function.name}({call.function.arguments})")
        result = globals()[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    ask(client, [*messages, {"role": "user", "content": "Tell me the weather and the plan in one sentence."}])
    print(f"\n{len(asked.tool_calls)} calls; calendar: {calendar}")


if __name__ == "__main__":
    main(*sys.argv[1:])
