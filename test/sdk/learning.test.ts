import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { startWorld, tally, type World, type WorldOptions } from '../journey/world.ts';

let world: World;
afterEach(() => world.close());

async function begin(options: WorldOptions): Promise<OpenAI> {
  world = await startWorld(options);
  return new OpenAI({
    apiKey: world.gateway.keys['acme'] ?? '',
    baseURL: `${world.gateway.url}/via/openai/v1`,
  });
}
const messages = [{ role: 'user' as const, content: 'Where does water go?' }];

// The test's own fixture.
const { retryAfterTorture } = JSON.parse(
  readFileSync(new URL('../fixtures/upstream-samples.json', import.meta.url), 'utf8'),
) as { retryAfterTorture: readonly string[] };

describe('a refusal with any form of Retry-After', () => {
  /** A wait that nobody can sit out: the refusal is passed on, and says that repeating is useless. */
  const tooLong = new Set(['3600']);
  /** Named waits, milliseconds. The others are garbage or past; ten digits are an instant, this one in 2026. */
  const namedMs: Readonly<Record<string, number>> = { '2': 2000, '2.0': 2000 };

  test('ends in a response or at once in a refusal, and no attempt is made before the stated time', async () => {
    const names = retryAfterTorture.map((_, at) => `model-${at}`);
    const client = await begin({
      model: { models: Object.fromEntries(names.map((name) => [name, { rpm: 500 }])) },
    });
    const { model } = world;
    const body = { error: { message: 'Rate limit reached', type: 'requests', code: 'rate_limit_exceeded' } };
    for (const [at, text] of retryAfterTorture.entries()) {
      const match = { model: names[at] ?? '' };
      model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': text }, body, match });
    }
    const outcomes = await Promise.all(
      names.map((name) =>
        client.chat.completions.create({ model: name, messages }).then(
          () => 'answered',
          (failure: unknown) => (failure instanceof OpenAI.RateLimitError ? 'refused' : String(failure)),
        ),
      ),
    );
    for (const [at, text] of retryAfterTorture.entries()) {
      const attempts = model.log.filter((entry) => entry.model === names[at]);
      const pauseMs = (attempts[1]?.arrivedT ?? 0) - (attempts[0]?.t ?? 0);
      const wanted = tooLong.has(text) ? 1 : 2;
      expect([text, attempts.length, outcomes[at]]).toEqual([
        text,
        wanted,
        wanted === 1 ? 'refused' : 'answered',
      ]);
      if (wanted === 2) expect(pauseMs).toBeGreaterThanOrEqual(namedMs[text] ?? 450);
    }
  });
});

test('a gateway that starts before a half-used bucket learns its level with the first call', async () => {
  const client = await begin({
    model: { models: { 'gpt-4o': { rpm: 600 } } },
    modelLimits: 'requestsPerMinute: 600',
  });
  const { model } = world;
  model.consume(500);
  await Promise.all(
    Array.from({ length: 115 }, () => client.chat.completions.create({ model: 'gpt-4o', messages })),
  );
  // Fifteen calls more than there is room for; a header's rounding may cost one refusal, never a storm.
  expect(tally(model.log)[200]).toBe(115);
  expect(tally(model.log)[429] ?? 0).toBeLessThanOrEqual(1);
  expect(model.log.filter(({ insideRetryAfter }) => insideRetryAfter)).toEqual([]);
});
