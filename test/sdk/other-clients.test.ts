/** Official clients in processes of their own: one needs what jest's global object lacks, others take seconds to load in it. */
import { fileURLToPath } from 'node:url';
import { expect, test } from '@jest/globals';
import { run, upstreams } from './upstream.ts';

const mebibyte = 1_048_576;
const start = upstreams();
const model = (field: string): string =>
  `kind: language-model, credential: { header: ${field}, value: upstream-secret }, limits: { tokensPerMinute: 30000 }`;

test.each([
  [
    'groq-sdk',
    `import Groq from 'groq-sdk';
    const client = new Groq({ apiKey, baseURL });
    const { choices } = await client.chat.completions.create({ model: 'm', messages });`,
  ],
  [
    '@mistralai/mistralai',
    `import { Mistral } from '@mistralai/mistralai';
    const client = new Mistral({ apiKey, serverURL: baseURL });
    const { choices } = await client.chat.complete({ model: 'm', messages });`,
  ],
  [
    '@slack/web-api',
    `import { WebClient } from '@slack/web-api';
    const client = new WebClient(apiKey, { slackApiUrl: baseURL + '/api/' });
    const { choices } = await client.chat.postMessage({ channel: 'C1', text: messages[0].content });`,
  ],
])('%s is served with key and base URL of Sluice', async (_name, chat) => {
  const message = { role: 'assistant', content: 'water finds its way' };
  const choices = [{ index: 0, message, finish_reason: 'stop' }];
  const usage = { prompt_tokens: 4, completion_tokens: 4, total_tokens: 8 };
  const response = { id: 'c', object: 'chat.completion', created: 1_790_000_000, model: 'm', choices, usage };
  const behind = await start(model('authorization'), () => [200, { ok: true, ...response }]);
  const program = `
    const { SLUICE_KEY: apiKey, SLUICE_URL: baseURL } = process.env;
    const messages = [{ role: 'user', content: 'Where does water go?' }];
    ${chat}
    console.log(choices[0].message.content);`;
  const args = ['--input-type=module', '--eval', program];
  expect(await run(behind, process.execPath, args, { SLUICE_URL: behind.url })).toBe('water finds its way\n');
  expect(behind.log.map(({ fields }) => fields.authorization)).toEqual(['upstream-secret']);
});

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
