/** Chats whole and in a stream. The environment names `SLUICE_KEY` and `SLUICE_URL`; the responses go to stdout as JSON. */
import { Mistral } from '@mistralai/mistralai';

const { SLUICE_KEY: apiKey, SLUICE_URL: serverURL } = process.env;
const { chat } = new Mistral({ apiKey, serverURL });
const call = {
  model: 'mistral-small-latest',
  messages: [{ role: 'user', content: 'Where does water go?' }],
  maxTokens: 3_000,
};

const whole = await chat.complete(call);
/** @type {string[]} */
const words = [];
let total;
for await (const { data } of await chat.stream(call)) {
  const { content } = data.choices[0]?.delta ?? {};
  if (typeof content === 'string' && content !== '') words.push(content);
  total = data.usage?.totalTokens ?? total;
}
process.stdout.write(
  JSON.stringify([
    { text: whole.choices[0]?.message?.content, total: whole.usage.totalTokens },
    { text: words.join(' '), total },
  ]),
);
