/** What a call is reserved before it is sent: tokens, images, and the model whose quota it takes. */
import { describe, expect, test } from '@jest/globals';
import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib';
import fc from 'fast-check';
import type { CallDescription } from '../../src/dispatch/estimate.policy.ts';
import { modelClass, tierOf } from '../../src/dispatch/model-call.policy.ts';
import { called, post } from './described-call.ts';

const chatPath = '/v1/chat/completions';
const chat = (body: object): CallDescription => post(chatPath, { model: 'gpt-4o', ...body });
const say = (content: unknown, role = 'user') => ({ messages: [{ role, content }] });
const tokens = ({ costs }: CallDescription): number => costs.tokens ?? NaN;
const x = (count: number): string => 'x'.repeat(count);
const png = `data:image/png;base64,${'A'.repeat(100_000)}`;

describe('the estimated tokens of a call', () => {
  const gemini = '/v1beta/models/gemini-1.5-pro:streamGenerateContent?alt=sse';
  const parts = [{ text: x(40) }, { inlineData: { mimeType: 'image/png', data: 'AAAA' } }];
  const data = { user: x(400), metadata: { note: x(400) } };
  const inputText = [{ role: 'user', content: [{ type: 'input_text', text: x(40) }] }];
  const picture = { type: 'computer_screenshot', image_url: png };
  const screenshot = { type: 'computer_call_output', output: picture };
  const newest = { ...say(x(80)), max_completion_tokens: 7, max_tokens: 100 };
  const withOutput = { contents: [{ parts }], generationConfig: { maxOutputTokens: 50 } };
  const deep = JSON.parse(`{"messages":${'['.repeat(3_000)}"x"${']'.repeat(3_000)}}`) as object;
  test.each<[string, string, object, number]>([
    // 21 were charged for 72 characters, 6 for 13.
    ['no fewer than were charged', chatPath, say(x(72)), 21],
    ['no fewer than were charged for a short one', chatPath, say(x(13)), 7],
    ['those of the output that it allows', chatPath, { ...say(x(80)), max_tokens: 100 }, 123],
    ['those of each choice', chatPath, { ...say(x(80)), max_tokens: 100, n: 3 }, 323],
    ['those of the newest spelling', chatPath, newest, 30],
    ['those of the Responses API', '/v1/responses', { input: x(80), max_output_tokens: 10 }, 33],
    ['those of the best of several', '/v1/completions', { prompt: x(80), max_tokens: 10, best_of: 2 }, 40],
    ['a picture, whatever its size', chatPath, say([{ type: 'image_url', image_url: { url: png } }]), 768],
    ['a data URL as a picture', chatPath, say(png), 768],
    ['what begins like a data URL', chatPath, say('data: 1, 2, 3 '), 7],
    ['only what the model reads', chatPath, { messages: [{ content: 'abcd', name: x(400) }], ...data }, 4],
    ['instructions beside input', '/v1/responses', { instructions: x(40), input: inputText }, 23],
    ['no output for Anthropic', '/v1/messages', { system: x(40), ...say(x(40)), max_tokens: 9_000 }, 23],
    ['text, picture and output for Gemini', gemini, withOutput, 828],
    ['a text to embed', '/v1/embeddings', { input: x(26) }, 7],
    ['texts to embed', '/v1/embeddings', { input: [x(8), x(8)] }, 4],
    ['a list of tokens to embed', '/v1/embeddings', { input: [1, 2, 3] }, 3],
    ['lists of tokens to embed', '/v1/embeddings', { input: [[1, 2, 3], [4]] }, 4],
    ['a screenshot as a picture', '/v1/responses', { input: [screenshot] }, 768],
    ['a long text without a blank', chatPath, say(x(20_000)), 5_003],
    ['nothing that seals a thought', chatPath, say([{ thinking: x(4), signature: x(2_000) }]), 4],
    ['texts to embed, without a blank', '/v2/embed', { texts: [x(8_000), x(8_000)] }, 4_000],
    ['a picture of unknown form', chatPath, say([{ type: 'text', text: x(4) }, { blob: x(20_000) }]), 769],
    ['a file in lines', chatPath, say([{ source: { data: `${x(76)}\r\n`.repeat(200) } }]), 768],
    ['nothing that is nested too deeply', chatPath, deep, 3],
  ])('are %s: %s', (_, path, body, expected) => expect(tokens(post(path, body))).toBe(expected));

  test.each([
    ['Chinese', '今天天气很好，我们去公园散步吧。', 12],
    ['Russian', 'Сегодня хорошая погода, пойдём гулять в парк.', 12],
    ['English', 'The weather is fine today, let us walk in the park.', 12],
  ])('of %s are within a factor of two', (_, sentence, real) => {
    const estimate = tokens(chat(say(sentence.repeat(100)))) / 100;
    expect(estimate).toBeGreaterThan(real / 2);
    expect(estimate).toBeLessThan(real * 2);
  });

  test('are whole, positive and finite, whatever the body', () => {
    const names = 'messages input prompt n max_tokens content text model stream best_of'.split(' ');
    const members = fc.constantFrom(...names);
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
    const paths = fc.constantFrom(chatPath, '/v1/embeddings', '/v1/images/generations', '/x');
    fc.assert(
      fc.property(paths, fc.dictionary(members, tree), (path, body) => {
        for (const units of Object.values(post(path, body).costs))
          expect(Number.isSafeInteger(units) && units >= 0).toBe(true);
      }),
      { numRuns: 500 },
    );
  });
});

describe('the estimated tokens of a call have', () => {
  const long = 'word '.repeat(2_000);
  const item = (...input: readonly unknown[]) => ({ input });
  const google = (...parts: readonly unknown[]) => ({ contents: [{ parts }] });
  const ask = { function: { name: 'find', arguments: JSON.stringify({ long }) } };
  const document = (source: object) => say([{ type: 'document', source }, { text: '' }]);
  const ofParts = { parts: [{ text: long }] };
  const [generate, converse] = ['/v1/models/m:generateContent', '/model/m/converse'];

  test.each<[string, string, object]>([
    ['what OpenAI asks of a tool', chatPath, { messages: [{ tool_calls: [ask] }] }],
    ['what an item asks of a tool', '/v1/responses', item({ type: 'function_call', arguments: long })],
    ['what an item asks of any tool', '/v1/responses', item({ type: 'custom_tool_call', input: long })],
    ['what a tool returns in an item', '/v1/responses', item({ type: 'function_call_output', output: long })],
    ['what a tool returns in parts', '/v1/responses', item({ output: [{ type: 'input_text', text: long }] })],
    ['what Anthropic asks of a tool', '/v1/messages', say([{ type: 'tool_use', input: { a: [long] } }])],
    ['what a tool returns', '/v1/messages', say([{ type: 'tool_result', content: [{ text: long }] }])],
    ['what Gemini asks of a tool', generate, google({ functionCall: { args: { long } } })],
    ['what a tool tells Gemini', generate, google({ functionResponse: { r: { long } } })],
    ['what Bedrock asks of a tool', converse, say([{ toolUse: { input: { long } } }])],
    ['what a tool tells Bedrock', converse, say([{ toolResult: { content: [{ json: { long } }] } }])],
    ['what Cohere is told', '/v1/chat', { message: 'hi', chat_history: [{ message: long }] }],
    ['what Cohere embeds', '/v2/embed', { texts: [long] }],
    ['what is ranked', '/v2/rerank', { query: 'a', documents: [{ text: long }] }],
    ['what Gemini embeds', '/v1/models/m:embedContent', { content: ofParts }],
    ['lists of it', '/v1/models/m:batchEmbedContents', { requests: [{ content: ofParts }] }],
    ['what Vertex AI embeds', '/v1/models/m:predict', { instances: [{ content: long }] }],
    ['what Titan embeds', '/model/m/invoke', { inputText: long }],
    ['what Hugging Face reads', '/models/a/b', { inputs: long }],
    ['what fills a stored prompt', '/v1/responses', { prompt: { id: 'p', variables: { topic: long } } }],
    ['a document as text', '/v1/messages', document({ type: 'text', data: long })],
    ['a document in parts', '/v1/messages', document({ type: 'content', content: [{ text: long }] })],
    ['instructions in snake case', generate, { system_instruction: { parts: [{ text: long }] } }],
    ['what Gemini ran', generate, google({ codeExecutionResult: { output: long } })],
    ['what Bedrock guards', converse, say([{ guardContent: { text: { text: long } } }])],
    ['what Bedrock has thought', converse, say([{ reasoningContent: { reasoningText: { text: long } } }])],
    ['documents of any members', '/v1/chat', { message: 'hi', documents: [{ title: 'a', snippet: long }] }],
    ['a preamble', '/v1/chat', { message: 'hi', preamble: long }],
    ['a conversation of Mistral', '/v1/conversations', { inputs: [{ role: 'user', content: long }] }],
    ['the input of Replicate', '/v1/models/o/m/predictions', { input: { prompt: long } }],
    ['the input of Alibaba', '/api/v1/services/aigc/text-generation/generation', { input: say(long) }],
    ['what stands behind a gap', '/v1/fim/completions', { prompt: '', suffix: long }],
  ])('%s', (_, path, body) => {
    expect(tokens(post(path, { model: 'm', ...body })) / (long.length / 4)).toBeCloseTo(1, 1);
  });

  test.each<[string, object]>([
    ['Bedrock', say([{ image: { format: 'png', source: { bytes: 'A'.repeat(9_000) } } }])],
    ['Gemini', google({ inline_data: { mime_type: 'image/png', data: 'A'.repeat(9_000) } })],
  ])('a picture in the form of %s', (_, body) => {
    expect(post(generate, body).costs).toMatchObject({ tokens: 765 + 3, images: 1 });
  });

  test.each<[string, object]>([
    ['Bedrock', { inferenceConfig: { maxTokens: 70 } }],
    ['Gemini', { generation_config: { max_output_tokens: 70 } }],
    ['Titan', { textGenerationConfig: { maxTokenCount: 70 } }],
    ['Nova', { inferenceConfig: { max_new_tokens: 70 } }],
    ['Llama', { max_gen_len: 70 }],
    ['Ollama', { options: { num_predict: 70 } }],
    ['Mistral', { completion_args: { max_tokens: 70 } }],
  ])('the output that it allows in the form of %s', (_, body) => {
    expect(tokens(post(converse, { ...say(x(40)), ...body }))).toBe(80);
  });

  const tool = { type: 'function', function: { name: 'find', description: 'd'.repeat(900), parameters: {} } };
  const forty = <T>(one: T): T[] => Array.from({ length: 40 }, () => one);
  const schema = { d: 'd'.repeat(40_000) };
  test.each<[string, object]>([
    ['tools', { tools: forty(tool) }],
    ['functions', { functions: forty(tool.function) }],
    ['a schema of the response', { response_format: { json_schema: { schema } } }],
    ['a schema of the Responses API', { text: { format: { schema } } }],
  ])('definitions: %s', (_, members) => {
    const added = tokens(chat({ ...say('hi'), ...members })) - tokens(chat(say('hi')));
    expect(Math.abs(added / (JSON.stringify(members).length / 4) - 1)).toBeLessThan(0.1);
  });

  test('definitions as part of what stands before a mark for the cache', () => {
    const tools = [{ name: 'a', description: 'd'.repeat(8_000), cache_control: { type: 'ephemeral' } }];
    const { guess } = post('/v1/messages', { model: 'm', max_tokens: 9, tools, ...say('hi') });
    expect(guess?.marked).toBeGreaterThan(2_000);
  });

  test('a bound, however deeply definitions are nested', () => {
    const tools = '['.repeat(400_000) + ']'.repeat(400_000);
    expect(tokens(post(chatPath, `{"model":"m","tools":${tools}}`))).toBeLessThan(30_000);
  });
});

const jobs = '/v1/assistants /v1/threads /v1/batches /v1/messages/batches /v1/fine_tuning/jobs';
test.each(jobs.split(' '))('a call that generates no text is one request: %s', (path) => {
  const described = post(path, { model: 'm', instructions: x(4_000), ...say(x(4_000)) });
  expect(described).toMatchObject({ model: 'm', costs: { requests: 1 }, guess: null });
  expect(described.costs).not.toHaveProperty('tokens');
});

const counting =
  '/v1/messages/count_tokens?beta=true /v1beta/models/m:countTokens /v1/responses/input_tokens /model/m/count-tokens /tokenize';
test.each(counting.split(' '))('a call that counts tokens spends none and has its own quota: %s', (path) => {
  const body = { model: 'm', ...say(x(4_000)) };
  const described = post(path, body);
  expect(described).toMatchObject({ model: 'm', guess: null, safe: true });
  expect(described.costs).toEqual({ requests: 1 });
  expect(described.tier).not.toBe(post('/v1/messages', body).tier);
});

describe('a call for images', () => {
  const multipart = 'multipart/form-data; boundary=b0';
  const form = (...parts: readonly string[]): string =>
    `${parts.map((part) => `--b0\r\n${part}\r\n`).join('')}--b0--\r\n`;
  const edit = (body: string, type = multipart) => called('/v1/images/edits', { body, type });
  const field = (name: string, value: string): string =>
    `Content-Disposition: form-data; name="${name}"\r\n\r\n${value}`;
  const file = (value: string, name = 'image[]'): string =>
    `Content-Disposition: form-data; name="${name}"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n${value}`;

  test('counts n of them', () => {
    const described = post('/v1/images/generations', { model: 'gpt-image-1', prompt: x(40), n: 3 });
    const costs = { requests: 1, images: 3 };
    expect(described).toMatchObject({ makesImages: true, model: 'gpt-image-1', costs });
    expect(post('/v1/images/generations', { prompt: 'a cat' }).costs.images).toBe(1);
    expect(chat(say('hi')).makesImages).toBe(false);
  });

  test('has model and n in a form, whatever its files contain and however they are named', () => {
    const bait = file(`--x\r\n${field('model', 'not-this-one')}`);
    const fields = [field('model', 'm'), field('n', '2'), field('prompt', x(8))];
    const body = form(bait, file('nor-this', 'model'), ...fields);
    expect(edit(body)).toMatchObject({ model: 'm', costs: { requests: 1, tokens: 2, images: 2 } });
    expect(edit(body, 'multipart/form-data; boundary="b0"').model).toBe('m');
    expect(edit(form(field('model', 'm').replace('"model"', 'model'))).model).toBe('m');
  });

  const broken = ['', '--b0', '--b0\r\nrubbish\r\n--b0--', 'no boundary at all'];
  test.each(broken)('is one for the form %j', (body) =>
    expect(edit(body)).toMatchObject({ model: null, costs: { requests: 1, images: 1 } }),
  );

  test('is none with a form for another purpose', () => {
    const body = form(field('model', 'whisper-1'), file('RIFF'));
    const described = called('/v1/audio/transcriptions', { body, type: multipart });
    expect([described.model, described.costs]).toEqual(['whisper-1', { requests: 1 }]);
  });
});

describe('the model of a call', () => {
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
    ['/openai/deployments/a%/embeddings', 'a%'],
  ])('is read from %s', (path, model) => expect(post(path, {}).model).toBe(model));

  test.each<[string, unknown, string | null]>([
    ['/openai/deployments/my%2Dgpt/chat/completions?api-version=1', { model: 'other' }, 'my-gpt'],
    ['/v1/text-to-speech/v1', { model: 'voice', model_id: 'other' }, 'voice'],
    ['/v1/anything', { model_id: 'm' }, 'm'],
    ['/v1/anything', { modelId: 'm' }, 'm'],
    ['/v1/anything', { session: { type: 'realtime', model: 'm' } }, 'm'],
    ['/v1/anything', { servingMode: { servingType: 'ON_DEMAND', modelId: 'm' } }, 'm'],
    [chatPath, '\uFEFF{"model":"m"}', 'm'],
    [chatPath, {}, null],
    [chatPath, { model: 7 }, null],
    [chatPath, { model: '' }, null],
    [chatPath, { model: x(257) }, null],
  ])('is that of the path, then of the body: %s %j', (path, body, model) => {
    expect(post(path, body).model).toBe(model);
  });

  test.each<[string, string, string]>([
    ['/v1/transcribe', 'application/x-www-form-urlencoded', 'model_id=m'],
    ['/v1/listen?model=m', 'audio/wav', 'RIFF'],
    [chatPath, 'text/plain;charset=UTF-8', '{"model":"m"}'],
  ])('is read from a call to %s with a body of %s: %s', (path, type, body) => {
    expect(called(path, { type, body }).model).toBe('m');
  });

  const document = JSON.stringify({ model: 'm', input: 'hi' });
  const coded = (coding: string, body: Buffer) =>
    called('/v1/responses', { fields: ['Content-Encoding', coding], body });
  test.each([
    ['gzip', gzipSync(document)],
    ['deflate', deflateSync(document)],
    ['deflate', deflateRawSync(document)],
    ['br', brotliCompressSync(document)],
    ['zstd', zstdCompressSync(document)],
    ['BR', brotliCompressSync(document)],
    ['identity', Buffer.from(document)],
    ['utf-8', Buffer.from(document)],
  ])('is read from a body in %s', (coding, body) => {
    expect(coded(coding, body)).toMatchObject({ model: 'm', costs: { requests: 1, tokens: 4 } });
  });

  const bomb = gzipSync(JSON.stringify({ model: 'm', input: x(4_194_304) }));
  test.each([
    ['damaged', 'gzip', gzipSync(document).subarray(0, 20)],
    ['more than 4 MiB', 'gzip', bomb],
    ['in two codings', 'gzip, gzip', gzipSync(gzipSync(document))],
  ])('is unknown where its body is %s', (_, coding, body) => expect(coded(coding, body).model).toBeNull());

  test.each([
    ['claude-opus-4-5', 'claude-opus-4.x'],
    ['claude-opus-4-8-20260501', 'claude-opus-4.x'],
    ['claude-opus-4-5-latest', 'claude-opus-4.x'],
    ['claude-opus-4-1', 'claude-opus-4-1'],
    ['claude-opus-4-20250514', 'claude-opus-4'],
    ['claude-opus-5', 'claude-opus-5'],
    ['claude-opus-5-5', 'claude-opus-5-5'],
    ['claude-sonnet-4-6', 'claude-sonnet-4.x'],
    ['claude-sonnet-4-5-20250929', 'claude-sonnet-4.x'],
    ['claude-haiku-4-5-20251001', 'claude-haiku-4-5'],
    ['claude-opus-4-5x', 'claude-opus-4-5x'],
    ['anthropic.claude-opus-4-5-20251101-v1:0', 'anthropic.claude-opus-4-5-20251101-v1:0'],
    ['gpt-4o-2024-08-06', 'gpt-4o-2024-08-06'],
    ['', ''],
  ])('takes the quota of its class: %s that of %s', (model, expected) => {
    expect(modelClass(model)).toBe(expected);
  });

  test.each([
    [{ speed: 'fast' }, 'fast'],
    [{ service_tier: 'flex' }, 'flex'],
    [{ service_tier: 'priority' }, ''],
    [{ service_tier: 'auto' }, ''],
    [{ speed: 1, service_tier: {} }, ''],
  ])('has a quota of its own in some tiers: %j in "%s"', (body, tier) => {
    expect(tierOf(body)).toBe(tier);
    expect(post('/v1/messages', { model: 'm', ...body })).toMatchObject({ model: 'm', tier });
  });
});

describe('the estimate of an unreadable body', () => {
  test.each(['', '{', 'null', '[]', '"x"', '\u0000'])('is one request for %j', (body) => {
    expect(post(chatPath, body)).toMatchObject({ model: null, costs: { requests: 1 } });
  });

  test('is one request for a body of another type', () =>
    expect(called('/v1/files', { body: x(100), type: 'text/plain' }).costs).toEqual({ requests: 1 }));
});

describe('the estimate of a very large body', () => {
  const base64 = 'iVBORw0KGgo+/A=='.repeat(70_000);
  const prose = 'word '.repeat(800);

  test.each<[string, (data: string) => object]>([
    ['OpenAI', (data) => ({ type: 'image_url', image_url: { url: `data:image/png;base64,${data}` } })],
    ['Anthropic', (data) => ({ type: 'image', source: { type: 'base64', media_type: 'image/png', data } })],
    ['Gemini', (data) => ({ inlineData: { mimeType: 'audio/wav', data } })],
    ['Ollama', (data) => ({ images: [data] })],
    ['a form of no provider', (data) => ({ attachment: { blob: data } })],
  ])('is that of its text, not of its pictures, in the form of %s', (_, part) => {
    const described = chat(say([{ type: 'text', text: prose }, part(base64), part(base64)]));
    expect([described.model, described.costs.images]).toEqual(['gpt-4o', 2]);
    expect(tokens(described)).toBeGreaterThan(1_000 + 2 * 765);
    expect(tokens(described)).toBeLessThan(1_000 + 2 * 765 + 200);
  });

  test('is no less for base64 whose slashes are escaped', () => {
    const body = JSON.stringify({ messages: [{ content: prose, data: base64 }] });
    expect(tokens(post(chatPath, body.replaceAll('/', String.raw`\/`)))).toBe(tokens(post(chatPath, body)));
  });

  test('is that of all of it where it is text', () => {
    const described = chat(say(prose.repeat(300)));
    expect(described.costs.images ?? 0).toBe(0);
    expect(tokens(described)).toBeGreaterThan((prose.length * 300) / 4);
  });

  test('comes from the size, without parsing, above a megabyte', () => {
    const mib = 1_048_576;
    // Broken JSON shows which of the two happened: parsed it costs a request, unparsed the tokens that its bytes may be.
    expect(post(chatPath, '['.repeat(mib)).costs).toEqual({ requests: 1 });
    expect(tokens(post(chatPath, '['.repeat(mib + 4)))).toBe(mib / 4 + 1 + 3);
    const start = '{"query":"{ shop { name } }","pad":"';
    const isSafe = (length: number): boolean => {
      const body = `${start}${x(length - start.length - 2)}"}`;
      return called('/admin/api/2026-10/graphql.json', { kind: 'commerce', body }).safe;
    };
    expect([isSafe(mib), isSafe(mib + 1)]).toEqual([true, false]);
  });

  test.each(['max_tokens', 'max_completion_tokens', 'max_output_tokens'])('includes its %s', (name) => {
    const body = `{"${name}" : 5000,"messages":[{"content":"${x(1_200_000)}"}]}`;
    const without = body.replace(name, x(name.length));
    expect(tokens(post(chatPath, body)) - tokens(post(chatPath, without))).toBe(5_000);
  });

  test.each([
    ['many short texts', Array<string>(2_048).fill(x(700))],
    ['tokens', Array<number>(300_000).fill(12_345)],
  ])('of embeddings of %s comes with their model', (_, input) => {
    const after = { input, model: 'm1', encoding_format: 'base64' };
    for (const members of [{ model: 'm1', input }, after])
      expect(post('/v1/embeddings', JSON.stringify(members)).model).toBe('m1');
  });

  test('comes with the model wherever that stands, and with no other', () => {
    const quoted = String.raw`"say \"model\": \"m3\" {[ \\"`;
    const text = `[{"role":"user","content":${quoted}},${JSON.stringify({ content: x(1_100_000) })}]`;
    const tools = JSON.stringify([{ name: 'y'.repeat(10_000) }]);
    const schema = JSON.stringify([{ properties: { model: { type: 'string' } }, example: { model: 'm2' } }]);
    const long = JSON.stringify({ metadata: { model: 'm2', text: x(30_000) } });
    for (const body of [
      `{"tools":${schema},"messages":${text},"model":"m1"}`,
      `{"tools":${schema},"messages":${text}, "model" : "m1","more":${long}}`,
      `{"tools":${schema},"x":${long},"model_id":"m1","messages":${text},"tool_choice":${schema}}`,
      `{"model":"m1","messages":${text}}`,
      `{"messages":${text},"model":"m1","tools":${tools}}`,
      `{"messages":${text},"model":"m1","tools":${text}}`,
    ])
      expect(post(chatPath, body).model).toBe('m1');
  });
});
