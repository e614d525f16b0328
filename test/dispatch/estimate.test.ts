import { describe, expect, test } from '@jest/globals';
import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib';
import fc from 'fast-check';
import type { UpstreamKind } from '../../src/call.ts';
import { describeCall, type CallDescription } from '../../src/dispatch/estimate.policy.ts';

const call = (
  kind: UpstreamKind,
  method: string,
  path: string,
  body: unknown = '',
  contentType: string | null = 'application/json',
): CallDescription =>
  describeCall(kind, {
    method,
    path,
    contentType,
    rawFields: [],
    body: Buffer.isBuffer(body) ? body : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
  });
const post = (path: string, body: unknown): CallDescription => call('language-model', 'POST', path, body);
const chat = (body: object): CallDescription => post('/v1/chat/completions', { model: 'gpt-4o', ...body });
const say = (content: unknown): object => ({ messages: [{ role: 'user', content }] });
const tokens = (described: CallDescription): number | undefined => described.costs.tokens;

describe('the estimate of a conversation', () => {
  test('is no lower than recorded charges: 21 tokens for 72 characters, 6 for 13', () => {
    expect(tokens(chat(say('x'.repeat(72))))).toBe(21);
    expect(tokens(chat(say('x'.repeat(13))))).toBe(7);
  });

  test('counts the output budget once for each requested choice, and prefers its newest spelling', () => {
    const text = say('x'.repeat(80));
    expect(tokens(chat({ ...text, max_tokens: 100 }))).toBe(123);
    expect(tokens(chat({ ...text, max_tokens: 100, n: 3 }))).toBe(323);
    expect(tokens(chat({ ...text, max_completion_tokens: 7, max_tokens: 100 }))).toBe(30);
    expect(tokens(post('/v1/responses', { input: 'x'.repeat(80), max_output_tokens: 10 }))).toBe(33);
    expect(tokens(post('/v1/completions', { prompt: 'x'.repeat(80), max_tokens: 10, best_of: 2 }))).toBe(40);
  });

  test('counts a picture the same whatever its size, and as one image', () => {
    const url = `data:image/png;base64,${'A'.repeat(100_000)}`;
    const described = chat(
      say([
        { type: 'text', text: 'x'.repeat(40) },
        { type: 'image_url', image_url: { url } },
      ]),
    );
    expect(described.costs).toEqual({ requests: 1, tokens: 10 + 765 + 3, images: 1 });
    const input = [{ role: 'user', content: [{ type: 'input_image', image_url: url }] }];
    expect(post('/v1/responses', { input }).costs).toEqual({ requests: 1, tokens: 768, images: 1 });
  });

  test('does not count a data URL as text', () => {
    expect(tokens(chat(say(`data:image/png;base64,${'A'.repeat(4000)}`)))).toBe(768);
    expect(tokens(chat(say('data: 1, 2, 3 ')))).toBe(7);
  });

  test('counts only what the model reads as text', () => {
    const described = chat({
      messages: [{ role: 'user', content: 'abcd', name: 'x'.repeat(400) }],
      metadata: { note: 'x'.repeat(400) },
      user: 'x'.repeat(400),
    });
    expect(tokens(described)).toBe(4);
  });

  test('counts both instructions and input items of the responses API', () => {
    const input = [{ role: 'user', content: [{ type: 'input_text', text: 'x'.repeat(40) }] }];
    expect(tokens(post('/v1/responses', { instructions: 'x'.repeat(40), input }))).toBe(23);
  });

  test('includes the output of a Gemini call and not that of an Anthropic call', () => {
    const messages = [{ role: 'user', content: 'x'.repeat(40) }];
    expect(tokens(post('/v1/messages', { system: 'x'.repeat(40), messages, max_tokens: 9000 }))).toBe(23);
    const contents = [
      { parts: [{ text: 'x'.repeat(40) }, { inlineData: { mimeType: 'image/png', data: 'AAAA' } }] },
    ];
    const gemini = post('/v1beta/models/gemini-1.5-pro:streamGenerateContent?alt=sse', {
      contents,
      generationConfig: { maxOutputTokens: 50 },
    });
    expect(gemini).toMatchObject({
      model: 'gemini-1.5-pro',
      costs: { tokens: 10 + 765 + 3 + 50 },
    });
  });
});

describe('the estimate of a call', () => {
  const long = 'word '.repeat(2_000);
  const part = (content: unknown, role = 'user') => ({ messages: [{ role, content }] });
  const item = (...input: readonly unknown[]) => ({ input });
  const gemini = (...parts: readonly unknown[]) => ({ contents: [{ parts }] });
  const call = { function: { name: 'find', arguments: JSON.stringify({ long }) } };

  test.each<readonly [string, string, object]>([
    ['what OpenAI asks of a tool', '/v1/chat/completions', { messages: [{ tool_calls: [call] }] }],
    ['what an item asks of a tool', '/v1/responses', item({ type: 'function_call', arguments: long })],
    ['what an item asks of any tool', '/v1/responses', item({ type: 'custom_tool_call', input: long })],
    ['what a tool returns in an item', '/v1/responses', item({ type: 'function_call_output', output: long })],
    ['what a tool returns in parts', '/v1/responses', item({ output: [{ type: 'input_text', text: long }] })],
    ['what Anthropic asks of a tool', '/v1/messages', part([{ type: 'tool_use', input: { a: [long] } }])],
    ['what a tool returns', '/v1/messages', part([{ type: 'tool_result', content: [{ text: long }] }])],
    [
      'what Gemini asks of a tool',
      '/v1/models/m:generateContent',
      gemini({ functionCall: { args: { long } } }),
    ],
    [
      'what a tool tells Gemini',
      '/v1/models/m:generateContent',
      gemini({ functionResponse: { r: { long } } }),
    ],
    ['what Bedrock asks of a tool', '/model/m/converse', part([{ toolUse: { input: { long } } }])],
    [
      'what a tool tells Bedrock',
      '/model/m/converse',
      part([{ toolResult: { content: [{ json: { long } }] } }]),
    ],
    ['what Cohere is told', '/v1/chat', { message: 'hi', chat_history: [{ message: long }] }],
    ['what Cohere embeds', '/v2/embed', { texts: [long] }],
    ['what is ranked', '/v2/rerank', { query: 'a', documents: [{ text: long }] }],
    ['what Gemini embeds', '/v1/models/m:embedContent', { content: { parts: [{ text: long }] } }],
    [
      'lists of it',
      '/v1/models/m:batchEmbedContents',
      { requests: [{ content: { parts: [{ text: long }] } }] },
    ],
    ['what Vertex AI embeds', '/v1/models/m:predict', { instances: [{ content: long }] }],
    ['what Titan embeds', '/model/m/invoke', { inputText: long }],
    ['what Hugging Face reads', '/models/a/b', { inputs: long }],
    ['what fills a stored prompt', '/v1/responses', { prompt: { id: 'p', variables: { topic: long } } }],
    [
      'a document as text',
      '/v1/messages',
      part([{ type: 'document', source: { type: 'text', data: long } }, { text: '' }]),
    ],
    [
      'a document in parts',
      '/v1/messages',
      part([{ type: 'document', source: { type: 'content', content: [{ text: long }] } }]),
    ],
    [
      'instructions of Gemini in snake case',
      '/v1/models/m:generateContent',
      { system_instruction: { parts: [{ text: long }] } },
    ],
    ['what Gemini ran', '/v1/models/m:generateContent', gemini({ codeExecutionResult: { output: long } })],
    ['what Bedrock guards', '/model/m/converse', part([{ guardContent: { text: { text: long } } }])],
    [
      'what Bedrock has thought',
      '/model/m/converse',
      part([{ reasoningContent: { reasoningText: { text: long } } }]),
    ],
    ['documents of any members', '/v1/chat', { message: 'hi', documents: [{ title: 'a', snippet: long }] }],
    ['a preamble', '/v1/chat', { message: 'hi', preamble: long }],
    ['a conversation of Mistral', '/v1/conversations', { inputs: [{ role: 'user', content: long }] }],
    ['the input of Replicate', '/v1/models/o/m/predictions', { input: { prompt: long } }],
    ['the input of Alibaba', '/api/v1/services/aigc/text-generation/generation', { input: part(long) }],
    ['what stands behind a gap', '/v1/fim/completions', { prompt: '', suffix: long }],
  ])('has %s', (_, path, body) => {
    expect((tokens(post(path, { model: 'm', ...body })) ?? 0) / (long.length / 4)).toBeCloseTo(1, 1);
  });

  test.each<readonly [string, object]>([
    ['Bedrock', part([{ image: { format: 'png', source: { bytes: 'A'.repeat(9_000) } } }])],
    ['Gemini', gemini({ inline_data: { mime_type: 'image/png', data: 'A'.repeat(9_000) } })],
  ])('has a picture in the form of %s', (_, body) => {
    expect(post('/v1/models/m:generateContent', body).costs).toMatchObject({ tokens: 765 + 3, images: 1 });
  });

  test.each<readonly [string, object]>([
    ['Bedrock', { inferenceConfig: { maxTokens: 70 } }],
    ['Gemini', { generation_config: { max_output_tokens: 70 } }],
    ['Titan', { textGenerationConfig: { maxTokenCount: 70 } }],
    ['Nova', { inferenceConfig: { max_new_tokens: 70 } }],
    ['Llama', { max_gen_len: 70 }],
    ['Ollama', { options: { num_predict: 70 } }],
    ['Mistral', { completion_args: { max_tokens: 70 } }],
  ])('has the output that it allows in the form of %s', (_, body) => {
    expect(tokens(post('/model/m/converse', { ...part('x'.repeat(40)), ...body }))).toBe(80);
  });
});

describe('the estimate of a call that generates no text', () => {
  test.each(['/v1/assistants', '/v1/threads', '/v1/batches', '/v1/messages/batches', '/v1/fine_tuning/jobs'])(
    'is one request: %s',
    (path) => {
      const body = { model: 'm', instructions: 'x'.repeat(4_000), ...say('x'.repeat(4_000)) };
      expect(post(path, body)).toMatchObject({ model: 'm', costs: { requests: 1 }, guess: null });
      expect(tokens(post(path, body))).toBeUndefined();
    },
  );

  test('has a screenshot as a picture', () => {
    const image_url = `data:image/png;base64,${'A'.repeat(100_000)}`;
    const output = { type: 'computer_screenshot', image_url };
    expect(tokens(post('/v1/responses', { input: [{ type: 'computer_call_output', output }] }))).toBe(768);
    expect(tokens(post('/v1/responses', { input: [{ output: { images: [image_url] } }] }))).toBeLessThan(20);
  });
});

test.each([
  ['Chinese', '今天天气很好，我们去公园散步吧。', 12],
  ['Russian', 'Сегодня хорошая погода, пойдём гулять в парк.', 12],
  ['English', 'The weather is fine today, let us walk in the park.', 12],
])('the estimate of %s is within a factor of two', (_, sentence, real) => {
  const estimate = (tokens(chat(say(sentence.repeat(100)))) ?? 0) / 100;
  expect(estimate).toBeGreaterThan(real / 2);
  expect(estimate).toBeLessThan(real * 2);
});

describe('the estimate of a call with definitions', () => {
  const tool = { type: 'function', function: { name: 'find', description: 'd'.repeat(900), parameters: {} } };
  const plain = tokens(chat(say('hi'))) ?? 0;

  test.each([
    ['tools', { tools: Array.from({ length: 40 }, () => tool) }],
    ['functions', { functions: Array.from({ length: 40 }, () => tool.function) }],
    ['a schema of the response', { response_format: { json_schema: { schema: { d: 'd'.repeat(40_000) } } } }],
    ['a schema of the Responses API', { text: { format: { schema: { d: 'd'.repeat(40_000) } } } }],
  ])('has them: %s', (_, members) => {
    const added = (tokens(chat({ ...say('hi'), ...members })) ?? 0) - plain;
    const written = JSON.stringify(members).length / 4;
    expect(added / written).toBeGreaterThan(0.9);
    expect(added / written).toBeLessThan(1.1);
  });

  test('counts them as part of what stands before a mark for the cache', () => {
    const tools = [{ name: 'a', description: 'd'.repeat(8_000), cache_control: { type: 'ephemeral' } }];
    const { guess } = post('/v1/messages', { model: 'm', max_tokens: 9, tools, ...say('hi') });
    expect(guess?.marked).toBeGreaterThan(2_000);
  });

  test.each([
    '['.repeat(400_000) + ']'.repeat(400_000),
    JSON.stringify(Array.from({ length: 400_000 }, () => 1)),
  ])('is bounded, whatever they hold', (tools) => {
    expect(tokens(post('/v1/chat/completions', `{"model":"m","tools":${tools}}`))).toBeLessThan(30_000);
  });
});

describe('a call that counts tokens', () => {
  const body = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'x'.repeat(4000) }] });
  test.each([
    '/v1/messages/count_tokens?beta=true',
    '/v1beta/models/m:countTokens',
    '/v1/responses/input_tokens',
    '/model/m/count-tokens',
    '/tokenize',
  ])('spends none, and shares no quota with the calls that generate: %s', (path) => {
    const described = post(path, body);
    expect(described).toMatchObject({ model: 'm', costs: { requests: 1 }, guess: null, safe: true });
    expect(described.costs).toEqual({ requests: 1 });
    expect(described.tier).not.toBe(post('/v1/messages', body).tier);
  });
});

describe('the estimate of an embeddings call', () => {
  test.each([
    ['one text', 'x'.repeat(26), 7],
    ['several texts', ['x'.repeat(8), 'x'.repeat(8)], 4],
    ['one list of tokens', [1, 2, 3], 3],
    ['lists of tokens', [[1, 2, 3], [4]], 4],
  ])('counts the tokens of %s', (_, input, expected) => {
    expect(post('/v1/embeddings', { model: 'e', input }).costs).toEqual({ requests: 1, tokens: expected });
  });
});

describe('the estimate of an image call', () => {
  test('counts n images for a generation, and marks it as an image call', () => {
    const described = post('/v1/images/generations', { model: 'gpt-image-1', prompt: 'x'.repeat(40), n: 3 });
    expect(described).toMatchObject({
      makesImages: true,
      model: 'gpt-image-1',
      costs: { requests: 1, images: 3 },
    });
    expect(post('/v1/images/generations', { prompt: 'a cat' }).costs.images).toBe(1);
    expect(chat(say('hi')).makesImages).toBe(false);
  });

  const form = (parts: readonly string[]): string =>
    `${parts.map((part) => `--b0\r\n${part}\r\n`).join('')}--b0--\r\n`;
  const edit = (body: string, type = 'multipart/form-data; boundary=b0'): CallDescription =>
    call('language-model', 'POST', '/v1/images/edits', body, type);
  const field = (name: string, value: string): string =>
    `Content-Disposition: form-data; name="${name}"\r\n\r\n${value}`;
  const file = (value: string): string =>
    `Content-Disposition: form-data; name="image[]"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n${value}`;

  test('reads model and n from a form, whatever its files contain', () => {
    const bait = `--x\r\n${field('model', 'not-this-one')}`;
    const body = form([
      file(bait),
      field('model', 'gpt-image-1'),
      field('n', '2'),
      field('prompt', 'x'.repeat(8)),
    ]);
    expect(edit(body)).toMatchObject({ model: 'gpt-image-1', costs: { requests: 1, tokens: 2, images: 2 } });
    expect(edit(body, 'multipart/form-data; boundary="b0"').model).toBe('gpt-image-1');
    expect(edit(form([field('model', 'm').replace('"model"', 'model')])).model).toBe('m');
  });

  test('never reads a file as a field, whatever its name', () => {
    const upload = 'Content-Disposition: form-data; name="model"; filename="m.txt"\r\n\r\nnot-this-one';
    expect(edit(form([upload, field('model', 'gpt-image-1')])).model).toBe('gpt-image-1');
  });

  test.each(['', '--b0', '--b0\r\nrubbish\r\n--b0--', 'no boundary at all'])(
    'is one image for the broken form %j',
    (body) => {
      expect(edit(body)).toMatchObject({ model: null, costs: { requests: 1, images: 1 } });
    },
  );

  test('is one request for a form sent for another purpose', () => {
    const body = form([field('model', 'whisper-1'), file('RIFF')]);
    const described = call(
      'language-model',
      'POST',
      '/v1/audio/transcriptions',
      body,
      'multipart/form-data; boundary=b0',
    );
    expect(described).toMatchObject({ model: 'whisper-1', costs: { requests: 1 } });
    expect(described.costs).toEqual({ requests: 1 });
  });
});

describe('the model of a call', () => {
  test('is the Azure deployment of the path rather than the model of the body', () => {
    const path = '/openai/deployments/my%2Dgpt/chat/completions?api-version=2025-01-01';
    expect(post(path, { model: 'other' }).model).toBe('my-gpt');
    expect(post('/openai/deployments/a%/embeddings', {}).model).toBe('a%');
  });

  test.each([
    ['/v1beta/models/m-1:generateContent', 'm-1'],
    ['/v1beta/tunedModels/mine-1:generateContent', 'mine-1'],
    ['/v1/projects/p/locations/eu/publishers/anthropic/models/claude:streamRawPredict', 'claude'],
    ['/v1/projects/p/locations/eu/endpoints/42:predict', '42'],
    ['/model/anthropic.claude-v2%3A0/converse', 'anthropic.claude-v2:0'],
    ['/model/arn%3Aaws%3Abedrock%3A1%2Fprofile/invoke', 'arn:aws:bedrock:1/profile'],
    ['/hf-inference/models/org/m/pipeline/feature-extraction', 'org/m'],
    ['/hf-inference/models/org/m', 'org/m'],
    ['/v1/models/owner/m/predictions', 'owner/m'],
    ['/v1/deployments/owner/d/predictions', 'owner/d'],
    ['/v1beta/models/m-1%3AgenerateContent', 'm-1'],
    ['/endpoints/mine/invocations', 'mine'],
    ['/serving-endpoints/mine/invocations', 'mine'],
    ['/v1/engines/davinci/completions', 'davinci'],
    ['/rpc/2.0/ai_custom/v1/wenxinworkshop/chat/ernie', 'ernie'],
    ['/v1/projects/p/locations/eu/endpoints/openapi/chat/completions', null],
    ['/client/v4/accounts/a/ai/run/@cf/meta/m', '@cf/meta/m'],
    ['/v1/realtime/calls?model=m-2', 'm-2'],
    ['/models/chat/completions?api-version=1', null],
  ])('is read from %s', (path, model) => {
    expect(post(path, {}).model).toBe(model);
  });

  test.each([
    [{ model_id: 'm' }],
    [{ modelId: 'm' }],
    [{ session: { type: 'realtime', model: 'm' } }],
    [{ servingMode: { servingType: 'ON_DEMAND', modelId: 'm' } }],
  ])('is read from a body like %j', (body) => {
    expect(post('/v1/anything', body).model).toBe('m');
  });

  test('is read from a form that is no multipart', () => {
    const form = call(
      'language-model',
      'POST',
      '/v1/transcribe',
      'model_id=m',
      'application/x-www-form-urlencoded',
    );
    expect(form.model).toBe('m');
  });

  test('stands in the query where the body is no document', () => {
    expect(call('language-model', 'POST', '/v1/listen?model=nova', 'RIFF', 'audio/wav').model).toBe('nova');
  });

  const coded = (coding: string, body: Buffer) =>
    describeCall('language-model', {
      method: 'POST',
      path: '/v1/responses',
      contentType: 'application/json',
      rawFields: ['Content-Encoding', coding],
      body,
    });
  const document = JSON.stringify({ model: 'm', input: 'hi' });
  test.each([
    ['gzip', gzipSync(document)],
    ['deflate', deflateSync(document)],
    ['deflate', deflateRawSync(document)],
    ['br', brotliCompressSync(document)],
    ['zstd', zstdCompressSync(document)],
    ['gzip, BR', brotliCompressSync(gzipSync(document))],
    ['identity', Buffer.from(document)],
    ['utf-8', Buffer.from(document)],
  ])('is read from a body in %s', (coding, body) => {
    expect(coded(coding, body)).toMatchObject({ model: 'm', costs: { requests: 1, tokens: 4 } });
  });

  test('is unknown where a body in gzip is damaged or decodes to more than 4 MiB', () => {
    expect(coded('gzip', gzipSync(document).subarray(0, 20)).model).toBeNull();
    const bomb = gzipSync(JSON.stringify({ model: 'm', input: 'x'.repeat(4_194_304) }));
    expect(coded('gzip', bomb).model).toBeNull();
    expect(coded('br, gzip', gzipSync(bomb)).model).toBeNull();
    expect(coded('gzip, gzip, gzip', gzipSync(gzipSync(gzipSync(document)))).model).toBeNull();
  });

  test('is read from JSON that is sent as text, or begins with a byte order mark', () => {
    const text = call('language-model', 'POST', '/v1/chat/completions', document, 'text/plain;charset=UTF-8');
    expect([text.model, post('/v1/chat/completions', `\uFEFF${document}`).model]).toEqual(['m', 'm']);
  });

  test.each([{ model: 'voice', model_id: 'other' }, { model_id: 'voice' }])(
    'is `model`, or `model_id` without it: %j',
    (body) => {
      expect(post('/v1/text-to-speech/v1', body).model).toBe('voice');
    },
  );

  test.each([{}, { model: 7 }, { model: '' }, { model: 'x'.repeat(257) }])(
    'is unknown for the body %.40j',
    (body) => {
      expect(post('/v1/chat/completions', body).model).toBeNull();
    },
  );
});

describe('the estimate of an unreadable body', () => {
  test.each(['', '{', 'null', '[]', '"x"', '\u0000'])('is one request for %j', (body) => {
    expect(post('/v1/chat/completions', body)).toMatchObject({
      model: null,
      costs: { requests: 1 },
    });
  });

  test('is one request for a body of another type', () => {
    expect(call('language-model', 'POST', '/v1/files', 'x'.repeat(100), 'text/plain').costs).toEqual({
      requests: 1,
    });
  });

  const base64 = 'iVBORw0KGgo+/A=='.repeat(70_000);
  const prose = 'word '.repeat(800);

  test.each<readonly [string, (data: string) => object]>([
    ['OpenAI', (data) => ({ type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } })],
    ['Anthropic', (data) => ({ type: 'image', source: { type: 'base64', media_type: 'image/png', data } })],
    ['Gemini', (data) => ({ inlineData: { mimeType: 'audio/wav', data } })],
    ['Ollama', (data) => ({ images: [data] })],
    ['a form of no provider', (data) => ({ attachment: { blob: data } })],
  ])('is that of its text, not of its pictures, for a very large body in the form of %s', (_, part) => {
    const pictures = [part(base64), part(base64)];
    const described = chat(say([{ type: 'text', text: prose }, ...pictures]));
    expect(described.model).toBe('gpt-4o');
    expect(described.costs.images).toBe(2);
    expect(tokens(described)).toBeGreaterThan(1000 + 2 * 765);
    expect(tokens(described)).toBeLessThan(1000 + 2 * 765 + 200);
  });

  test('is no less for base64 whose slashes are escaped', () => {
    const body = JSON.stringify({ messages: [{ content: prose, data: base64 }] });
    const plain = tokens(post('/v1/chat/completions', body)) ?? 0;
    const escaped = tokens(post('/v1/chat/completions', body.replaceAll('/', String.raw`\/`)));
    expect(escaped).toBe(plain);
  });

  test('is that of all of it for a very large body of text', () => {
    const described = chat(say(prose.repeat(300)));
    expect(described.costs.images ?? 0).toBe(0);
    expect(tokens(described)).toBeGreaterThan((prose.length * 300) / 4);
  });

  test('comes from the size, without parsing, for a body of more than a megabyte', () => {
    const longest = 1_048_576;
    // Broken JSON shows which of the two happened: parsed it costs a request, unparsed the tokens that its bytes may be.
    expect(post('/v1/chat/completions', '['.repeat(longest)).costs).toEqual({ requests: 1 });
    expect(tokens(post('/v1/chat/completions', '['.repeat(longest + 4)))).toBe(longest / 4 + 1 + 3);
    const document = (length: number) => {
      const start = '{"query":"{ shop { name } }","pad":"';
      return `${start}${'x'.repeat(length - start.length - 2)}"}`;
    };
    const graphql = (length: number) =>
      call('commerce', 'POST', '/admin/api/2026-10/graphql.json', document(length));
    expect(graphql(longest).safe).toBe(true);
    expect(graphql(longest + 1).safe).toBe(false);
  });

  test.each(['max_tokens', 'max_completion_tokens', 'max_output_tokens'])(
    'includes %s of an unparsed body like that of a parsed one',
    (name) => {
      const body = `{"${name}" : 5000,"messages":[{"content":"${'x'.repeat(1_200_000)}"}]}`;
      const limited = tokens(post('/v1/chat/completions', body)) ?? 0;
      const other = body.replace(name, 'x'.repeat(name.length));
      expect(limited - (tokens(post('/v1/chat/completions', other)) ?? 0)).toBe(5000);
    },
  );

  test('comes with the model wherever that stands in an unparsed body, and with no other', () => {
    const quoted = String.raw`"say \"model\": \"m3\" {[ \\"`;
    const text = `[{"role":"user","content":${quoted}},${JSON.stringify({ content: 'x'.repeat(1_100_000) })}]`;
    const tools = JSON.stringify([{ name: 'y'.repeat(10_000) }]);
    const schema = JSON.stringify([{ properties: { model: { type: 'string' } }, example: { model: 'm2' } }]);
    const long = JSON.stringify({ metadata: { model: 'm2', text: 'x'.repeat(30_000) } });
    for (const body of [
      `{"tools":${schema},"messages":${text},"model":"m1"}`,
      `{"tools":${schema},"messages":${text}, "model" : "m1","more":${long}}`,
      `{"tools":${schema},"x":${long},"model_id":"m1","messages":${text},"tool_choice":${schema}}`,
      `{"model":"m1","messages":${text}}`,
      `{"messages":${text},"model":"m1","tools":${tools}}`,
      `{"messages":${text},"model":"m1","tools":${text}}`,
    ])
      expect(post('/v1/chat/completions', body).model).toBe('m1');
  });

  test('ignores what is nested too deeply and does not overflow the stack', () => {
    const body = `{"messages":${'['.repeat(5000)}"x"${']'.repeat(5000)}}`;
    expect(tokens(post('/v1/chat/completions', body))).toBe(3);
  });

  test('is a whole, positive and finite number, whatever the body', () => {
    const members = fc.constantFrom(
      'messages',
      'input',
      'prompt',
      'n',
      'max_tokens',
      'content',
      'text',
      'model',
      'stream',
      'best_of',
    );
    const { tree } = fc.letrec((tie) => ({
      tree: fc.oneof(
        { depthSize: 'small' },
        fc.string(),
        fc.double(),
        fc.constant(null),
        fc.dictionary(members, tie('tree')),
        fc.array(tie('tree'), { maxLength: 3 }),
      ),
    }));
    const paths = fc.constantFrom('/v1/chat/completions', '/v1/embeddings', '/v1/images/generations', '/x');
    fc.assert(
      fc.property(paths, fc.dictionary(members, tree), (path, body) => {
        for (const units of Object.values(post(path, body).costs)) {
          expect(Number.isSafeInteger(units) && units >= 0).toBe(true);
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe('the repeatability of a call', () => {
  test.each([
    ['GET', true, true],
    ['HEAD', true, true],
    ['OPTIONS', true, true],
    ['PUT', false, true],
    ['DELETE', false, true],
    ['POST', false, false],
    ['PATCH', false, false],
  ])('is that of its method %s', (method, safe, idempotent) => {
    for (const kind of ['language-model', 'commerce', 'generic'] as const) {
      expect(call(kind, method, '/x', '{}')).toMatchObject({ safe, idempotent });
    }
  });
});

describe('the description of a commerce call', () => {
  const graphql = (body: unknown, path = '/admin/api/2026-10/graphql.json'): CallDescription =>
    call('commerce', 'POST', path, body);
  const query = (text: string, more: object = {}): CallDescription => graphql({ query: text, ...more });

  test('costs one request and no points for REST', () => {
    expect(call('commerce', 'GET', '/admin/api/2026-10/orders.json?x=/graphql.json')).toMatchObject({
      callClass: 'rest',
      costs: { requests: 1 },
      costKey: null,
    });
  });

  test('says that a payment with a unique token is idempotent, and other posts are not', () => {
    const pay = { payment: { unique_token: 'abc' } };
    expect(call('commerce', 'POST', '/admin/payments.json', pay).hasOwnIdempotency).toBe(true);
    expect(call('commerce', 'POST', '/admin/orders.json', { order: {} }).hasOwnIdempotency).toBe(false);
  });

  test('says that a query is safe, and a mutation or a subscription is not', () => {
    expect(query('{ shop { name } }')).toMatchObject({ callClass: 'graphql', safe: true, idempotent: true });
    expect(query('mutation { a { b } }')).toMatchObject({ safe: false, idempotent: false });
    expect(query('subscription { a }')).toMatchObject({ safe: false });
  });

  test('describes the operation named by operationName, else the first one', () => {
    const both = 'mutation M { a { b } } query Q { c }';
    expect(query(both, { operationName: 'Q' }).safe).toBe(true);
    expect(query(both, { operationName: 'M' }).safe).toBe(false);
    expect(query(both).safe).toBe(false);
    expect(query('query Q { c } mutation M { a }').safe).toBe(true);
    expect(query('query Q { c }', { operationName: 'Other' }).safe).toBe(false);
  });

  test.each([
    ['not parsable', { query: 'query {' }],
    ['without a document', { query: 7 }],
    ['a batch', [{ query: '{ a }' }]],
    ['only a fragment', { query: 'fragment F on X { a }' }],
    ['longer than 64 KiB', { query: `{ a } #${'x'.repeat(65_536)}` }],
    ['of too many tokens', { query: `{ ${'a '.repeat(25_000)} }` }],
    ['empty', ''],
  ])('treats GraphQL that is %s as a write', (_, body) => {
    expect(graphql(body)).toMatchObject({ callClass: 'graphql', safe: false, costKey: null });
  });

  test('says that a mutation is idempotent only when all of its fields are', () => {
    const refund = 'refundCreate(input: $i) @idempotent(key: "k") { refund { id } }';
    expect(query(`mutation($i: I!) { ${refund} }`).hasOwnIdempotency).toBe(true);
    expect(query(`mutation($i: I!) { ${refund} tagsAdd(id: 1) { node { id } } }`).hasOwnIdempotency).toBe(
      false,
    );
    expect(query('mutation { a(text: "@idempotent") { b } } # @idempotent').hasOwnIdempotency).toBe(false);
    expect(query('{ a @idempotent }').hasOwnIdempotency).toBe(false);
  });

  test('has a cost key that holds what the cost depends on, and nothing that a person typed', () => {
    const text = 'query($n: Int!, $q: String) { orders(first: $n, query: $q) { nodes { id } } }';
    const key = (variables: object): string | null => query(text, { variables }).costKey;
    const many = Object.fromEntries(Array.from({ length: 257 }, (_, at) => [`v${at}`, at]));
    expect(key(many)).toBeNull();
    expect(key({ n: 10, q: 'email:a@b.c' })).toBe(key({ q: 'email:other', n: 10 }));
    expect(key({ n: 10 })).not.toBe(key({ n: 20 }));
    expect(key({ n: 10, q: 'email:a@b.c' })).not.toContain('a@b.c');
  });

  test('reserves points for unknown documents, and none for the storefront API', () => {
    expect(query('{ a }').costs).toEqual({ cost: 50 });
    expect(query('mutation { a }').costs).toEqual({ cost: 10 });
    const storefront = graphql({ query: '{ a }' }, '/api/2026-10/graphql.json');
    expect(storefront.safe).toBe(true);
    expect(storefront.costs).toEqual({});
  });

  test('reads a document sent as application/graphql', () => {
    const described = call('commerce', 'POST', '/admin/api/graphql.json', '{ a }', 'application/graphql');
    expect(described.safe).toBe(true);
  });
});

describe('repeating a POST to a language model', () => {
  test.each([
    '/v1/chat/completions',
    '/v1/completions',
    '/v1/responses',
    '/v1/messages',
    '/v1/messages/count_tokens',
    '/v1/embeddings',
    '/v1/images/generations',
    '/v1/images/edits',
    '/v1/audio/speech',
    '/v1/audio/transcriptions',
    '/v1/rerank',
    '/v1/moderations',
    '/v1/agents/completions',
    '/v1beta/models/gemini-2.5-pro:generateContent',
    '/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse',
    '/v1beta/models/text-embedding:batchEmbedContents',
    '/v1beta/tunedModels/mine:generateContent',
    '/v1/projects/p/locations/l/publishers/google/models/m:predict',
    '/model/anthropic.claude/invoke',
    '/model/anthropic.claude/converse-stream',
    '/openai/deployments/batches/chat/completions?api-version=1',
    '/openai/deployments/files/embeddings',
    '/v1/never-heard-of',
    '/v1/chat/completions?files=batches',
    '/',
  ])('only costs money: %s', (path) => {
    expect(post(path, {}).onlyCosts).toBe(true);
    expect(call('generic', 'POST', path, {}).onlyCosts).toBe(false);
    expect(call('language-model', 'PATCH', path, {}).onlyCosts).toBe(false);
  });

  test.each([
    '/v1/fine_tuning/jobs',
    '/v1/fine_tuning/jobs/j1/cancel',
    '/v1/fine-tunes',
    '/v1/batches',
    '/v1/batches/',
    '/V1/Batches',
    '/v1/%62atches',
    '/v1/batches?after=completions',
    '/v1/messages/batches',
    '/v1/batch/jobs',
    '/v1/files',
    '/openai/files?api-version=1',
    '/v1/uploads/u1/parts',
    '/v1/assistants',
    '/v1/threads',
    '/v1/threads/runs',
    '/v1/threads/t1/runs',
    '/v1/threads/t1/messages',
    '/v1/vector_stores/v1/files',
    '/v1/containers',
    '/v1/conversations',
    '/v1/evals/e1/runs',
    '/upload/v1beta/files',
    '/v1beta/cachedContents',
    '/v1beta/tunedModels',
    '/v1beta/models/gemini-2.5-pro:batchGenerateContent',
    '/v1/projects/p/locations/l/tuningJobs',
    '/v1/projects/p/locations/l/batchPredictionJobs',
    '/model-customization-jobs',
    '/async-invoke',
  ])('creates another one: %s', (path) => {
    expect(post(path, {}).onlyCosts).toBe(false);
  });

  test('is judged by the path alone, whatever the body and its type', () => {
    for (const [body, type] of [
      ['', null],
      ['not json', 'text/plain'],
      ['--b\r\n', 'multipart/form-data; boundary=b'],
    ] as const) {
      expect(call('language-model', 'POST', '/v1/files', body, type).onlyCosts).toBe(false);
      expect(call('language-model', 'POST', '/v1/audio/transcriptions', body, type).onlyCosts).toBe(true);
    }
  });
});
