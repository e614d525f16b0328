/** Official clients that send much: a file in parts, to an address that a response names, and a picture inside a message. */
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import OpenAI from 'openai';
import { run, upstreams } from './upstream.ts';

const mebibyte = 1_048_576;
const start = upstreams();
const model = (field: string): string =>
  `kind: language-model, credential: { header: ${field}, value: upstream-secret }, limits: { tokensPerMinute: 30000 }`;

test('@google/genai uploads a file in parts through the gateway, with its credential', async () => {
  const size = 9 * mebibyte;
  let left = size;
  const behind = await start(model('x-goog-api-key'), ({ body, fields, origin }) => {
    const command = String(fields['x-goog-upload-command']);
    const url = `${origin}/upload/v1beta/files?upload_id=u1&upload_protocol=resumable`;
    if (command === 'start') return [200, {}, { 'x-goog-upload-url': url }];
    left -= body.length;
    const isDone = left === 0 && command.includes('finalize');
    const file = { name: 'files/f1', state: 'ACTIVE' };
    return [200, isDone ? { file } : {}, { 'x-goog-upload-status': isDone ? 'final' : 'active' }];
  });
  const program = fileURLToPath(new URL('gemini-client.mjs', import.meta.url));
  const printed = await run(behind, process.execPath, [program, String(size)], { SLUICE_URL: behind.url });
  expect(JSON.parse(printed)).toMatchObject({ name: 'files/f1' });
  expect(left).toBe(0);
  expect(behind.log.length).toBeGreaterThanOrEqual(3);
  for (const { line, fields } of behind.log) {
    expect(fields['x-goog-api-key']).toBe('upstream-secret');
    expect(line).not.toContain(behind.apiKey);
  }
});

test('the openai client sends a picture of 4 MiB, which takes its tokens and not those of its text', async () => {
  const picture = Buffer.alloc(4 * mebibyte, 7).toString('base64');
  const message = { role: 'assistant', content: 'A picture.' };
  const usage = { prompt_tokens: 800, completion_tokens: 3, total_tokens: 803 };
  const choices = [{ index: 0, message, finish_reason: 'stop' }];
  const { log, url, apiKey } = await start(model('authorization'), () => [
    200,
    { id: 'c', object: 'chat.completion', choices, usage },
  ]);
  const client = new OpenAI({ apiKey, baseURL: `${url}/v1`, maxRetries: 0 });
  const image_url = { url: `data:image/png;base64,${picture}` };
  const content = [
    { type: 'text' as const, text: 'What is this?' },
    { type: 'image_url' as const, image_url },
  ];
  const asking = {
    model: 'gpt-5',
    max_completion_tokens: 100,
    messages: [{ role: 'user' as const, content }],
  };
  // As text each of them would be a million tokens, of 30,000 a minute.
  for (let n = 0; n < 2; n += 1) {
    const { data, response } = await client.chat.completions.create(asking).withResponse();
    expect(data.choices[0]?.message.content).toBe('A picture.');
    expect(response.headers.get('sluice-admission')).toContain('attempts=1');
  }
  expect(log).toHaveLength(2);
  for (const { body, fields } of log) {
    expect(body.includes(picture)).toBe(true);
    expect(fields.authorization).toBe('upstream-secret');
  }
});
