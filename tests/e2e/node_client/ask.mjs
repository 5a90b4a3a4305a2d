// Asks a server through OpenAI's Node client, whole and streamed, and prints what came as one line of JSON.
import OpenAI from "openai";

const [url, model, asked] = process.argv.slice(2);
const { words, weather, tool } = JSON.parse(asked);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const common = { model, temperature: 0, max_tokens: 64 };

async function chat(fields) {
  const whole = (await client.chat.completions.create({ ...common, ...fields })).choices[0];
  const stream = client.chat.completions.stream({ ...common, ...fields });
  const streamed = (await stream.finalChatCompletion()).choices[0];
  return [whole, streamed].map(({ message, finish_reason }) => ({
    content: message.content,
    calls: (message.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    finish_reason,
  }));
}

async function respond() {
  const call = { model, temperature: 0, max_output_tokens: 64, input: words };
  const whole = await client.responses.create(call);
  let streamed = "";
  for await (const event of await client.responses.create({ ...call, stream: true })) {
    if (event.type === "response.output_text.delta") streamed += event.delta;
  }
  return [whole.output_text, streamed];
}

let refused = "";
try {
  await client.chat.completions.create({ ...common, messages: words, temperature: -1 });
} catch (error) {
  refused = `${error.constructor.name} ${error.status} ${error.param}`;
}
const answers = { words: await chat({ messages: words }), call: await chat({ messages: weather, tools: [tool] }) };
console.log(JSON.stringify({ ...answers, responses: await respond(), refused }));
