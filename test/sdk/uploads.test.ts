/** An official client that sends much: a file in parts, to an address that a response names. */
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
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
