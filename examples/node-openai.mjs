/** The official OpenAI client through Sluice: `npm install openai`, then `SLUICE_KEY=slc_… node node-openai.mjs`. */
import OpenAI from 'openai';

const client = new OpenAI({
  apiKey: process.env.SLUICE_KEY, // a key of Sluice; the real one stays in Sluice's configuration
  baseURL: `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/openai/v1`,
  maxRetries: 0, // Sluice waits and repeats; it refuses only what cannot be sent in time
});

try {
  const stream = await client.chat.completions.create(
    {
      model: 'gpt-4o',
      messages: [{ role: 'user', content: process.argv[2] ?? 'Where does water go?' }],
      stream: true,
    },
    { timeout: 120_000 }, // given here, not to the client, Sluice sees it and answers before
  );
  for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '');
  process.stdout.write('\n');
} catch (error) {
  if (!(error instanceof OpenAI.APIError) || error.status !== 429) throw error;
  // The time is true: before it, the response would be the same.
  console.error(`${error.code}: try again in ${error.headers?.get('retry-after')} s`);
  process.exitCode = 75;
}
