/**
 * A batch whose SDK comes back by itself: `npm install @anthropic-ai/sdk`, then
 * `SLUICE_KEY=slc_… node reserve-anthropic.mjs 'a prompt' 'another prompt' …`. The SDK counts its attempts, so that Sluice knows a repeated
 * call and its position without a ticket. It keeps to the told time up to a minute; for longer waits see reserve-openai.mjs.
 */
import Anthropic from '@anthropic-ai/sdk';

const client = new Anthropic({
  apiKey: process.env.SLUICE_KEY,
  baseURL: `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/${process.env.SLUICE_UPSTREAM ?? 'anthropic'}`,
  maxRetries: 5,
  defaultHeaders: { prefer: 'reserve, wait=5' },
});

await Promise.all(
  process.argv.slice(2).map(async (content) => {
    const messages = [{ role: 'user', content }];
    const { content: parts } = await client.messages.create({
      model: 'claude-sonnet-5',
      max_tokens: 256,
      messages,
    });
    console.log(parts.map(({ text = '' }) => text).join(''));
  }),
);
