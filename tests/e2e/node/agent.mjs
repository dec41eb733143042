// An agent in another language: the real openai package, its run named in the base URL of the gateway.
import OpenAI from "openai";

const [url, run] = process.argv.slice(2);
const client = (path) => new OpenAI({ baseURL: `${url}/r/${run}${path}/v1`, apiKey: "arttrace", maxRetries: 0 });
const messages = [{ role: "user", content: "How much is 6 times 7?" }];

const answer = await client("").chat.completions.create({ model: "policy:latest", messages, max_tokens: 6 });
messages.push(answer.choices[0].message, { role: "user", content: "And plus 1?" });

let text = "";
const stream = await client("").chat.completions.create({ model: "policy:latest", messages, max_tokens: 6, stream: true });
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";

const searches = ["a", "b"].map((query) =>
  client("/search").responses.create({ model: "policy:latest", input: query, max_output_tokens: 4 }),
);
const found = await Promise.all(searches);

const ended = await fetch(`${url}/r/${run}/end`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ reward: 0.5, group: "sums", result: text }),
});
console.log(JSON.stringify({ text, model: answer.model, searched: found.map((each) => each.output_text), ended: await ended.json() }));
