/**
 * An agent that calls the model until it has no more tools to call: `npm install openai`, then
 * `SLUICE_KEY=slc_… node agent-loop.mjs`. Several of them share one quota fairly, without a word of each other.
 */
import OpenAI from 'openai';

const client = new OpenAI({
  apiKey: process.env.SLUICE_KEY,
  baseURL: `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/openai/v1`,
  maxRetries: 0,
  // An agent that nobody watches has time: its calls wait behind those that people wait for. Node's fetch hangs up after 300 s.
  defaultHeaders: { prefer: 'wait=280', priority: 'u=6' },
});
const maxTurns = 20;

const tools = {
  stock_of: ({ product }) => ({ product, units: product.length }),
};
const described = [
  {
    type: 'function',
    function: {
      name: 'stock_of',
      description: 'Units of a product in stock',
      parameters: { type: 'object', properties: { product: { type: 'string' } }, required: ['product'] },
    },
  },
];

const messages = [{ role: 'user', content: process.argv[2] ?? 'How many lamps are there?' }];
for (let turn = 0; turn < maxTurns; turn += 1) {
  const { choices } = await client.chat.completions.create({ model: 'gpt-4o', messages, tools: described });
  const { message } = choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const { id, function: asked } of message.tool_calls) {
    const result = tools[asked.name]?.(JSON.parse(asked.arguments)) ?? { error: 'there is no such tool' };
    messages.push({ role: 'tool', tool_call_id: id, content: JSON.stringify(result) });
  }
}
console.log(messages.at(-1).content);
