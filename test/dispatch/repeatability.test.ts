/** What may be sent twice: by the method of a call, by another one that it asks for, by its document, and by its path. */
import { describe, expect, test } from '@jest/globals';
import type { CallDescription } from '../../src/dispatch/estimate.policy.ts';
import { called, post, type Asked } from './described-call.ts';

const words = (text: string): readonly string[] => text.split(' ');
const traits = ({ safe, idempotent }: CallDescription) => ({ safe, idempotent });
const read = { safe: true, idempotent: true };
const replaces = { safe: false, idempotent: true };
const acts = { safe: false, idempotent: false };

test.each([
  ['GET', read],
  ['HEAD', read],
  ['OPTIONS', read],
  ['PUT', replaces],
  ['DELETE', replaces],
  ['POST', acts],
  ['PATCH', acts],
])('a call is as repeatable as its method %s: %j', (method, expected) => {
  for (const kind of ['language-model', 'commerce', 'generic'] as const)
    expect(traits(called('/x', { kind, method, body: '{}' }))).toEqual(expected);
});

describe('a call that asks for another method than its own', () => {
  const asks = ({ path = '/a', ...asked }: Asked & { path?: string }) =>
    traits(called(path, { kind: 'generic', method: 'GET', type: null, ...asked }));
  const override = (...values: string[]) => values.flatMap((value) => ['X-HTTP-Method-Override', value]);

  test.each<Asked & { path?: string }>([
    { fields: override('POST') },
    { fields: ['x-http-method-override', 'post'] },
    { fields: ['X_HTTP_METHOD_OVERRIDE', ' POST '] },
    { fields: ['X-HTTP-Method', 'PATCH'] },
    { fields: ['X-Method-Override', 'MERGE'] },
    { fields: override('GET', 'POST') },
    { fields: override('GET, POST') },
    { fields: override('') },
    { path: '/a?_method=POST' },
    { path: '/a?x=1&_METHOD=patch' },
    { path: '/a?%5Fmethod=POST' },
    { path: '/a?%5f%6d%65%74%68%6f%64=POST' },
    { path: '/a?X-HTTP-Method-Override=POST' },
    { path: '/a?x=1;_method=POST' },
    { path: '/a?method=post' },
    { fields: ['HTTP-Method-Override', 'POST'] },
    { fields: ['X-Override-Method', 'POST'] },
    { method: 'DELETE', fields: override('POST') },
    { method: 'HEAD', path: '/a?_method=POST' },
    { fields: override('HEAD') },
    { method: 'PUT', path: '/a?_method=GET' },
    { method: 'POST', fields: override('GET') },
  ])('may not run twice where either may not: %j', (asked) => expect(asks(asked)).toEqual(acts));

  test.each<Asked & { path?: string }>([
    { path: '/a?payment_method=POST&method=flickr.photos.search' },
    { path: '/a_method=POST?x=%20' },
    { fields: ['X-Payment-Method', 'card', 'Access-Control-Request-Method', 'POST'] },
  ])('is no call that only names some method: %j', (asked) => expect(asks(asked)).toEqual(read));
});

describe('the description of a commerce call', () => {
  const commerce = (path: string, body: unknown, more: Asked = {}) =>
    called(path, { kind: 'commerce', body, ...more });
  const graphql = (body: unknown, path = '/admin/api/2026-10/graphql.json') => commerce(path, body);
  const query = (text: string, more: object = {}) => graphql({ query: text, ...more });

  test('costs one request and no points for REST', () => {
    const orders = commerce('/admin/api/2026-10/orders.json?x=/graphql.json', '', { method: 'GET' });
    expect(orders).toMatchObject({ callClass: 'rest', costs: { requests: 1 }, costKey: null });
  });

  test('says that a payment with a unique token is idempotent, and other posts are not', () => {
    const payment = { payment: { unique_token: 'abc' } };
    const pay = commerce('/admin/payments.json', payment);
    const asPost = { method: 'GET', fields: ['X-HTTP-Method-Override', 'POST'] };
    const payByGet = commerce('/admin/payments.json', payment, asPost);
    const order = commerce('/admin/orders.json', { order: {} });
    expect([pay, payByGet, order].map((call) => call.hasOwnIdempotency)).toEqual([true, true, false]);
  });

  const both = 'mutation M { a { b } } query Q { c }';
  test.each<[string, object, object]>([
    ['{ shop { name } }', {}, { callClass: 'graphql', ...read }],
    ['mutation { a { b } }', {}, acts],
    ['subscription { a }', {}, acts],
    [both, { operationName: 'Q' }, read],
    [both, { operationName: 'M' }, acts],
    [both, {}, acts],
    ['query Q { c } mutation M { a }', {}, read],
    ['query Q { c }', { operationName: 'Other' }, acts],
  ])('is that of the operation that is named, else of the first one: %s %j is %j', (text, more, expected) => {
    expect(query(text, more)).toMatchObject(expected);
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

  const refund = 'refundCreate(input: $i) @idempotent(key: "k") { refund { id } }';
  test.each([
    [`mutation($i: I!) { ${refund} }`, true],
    [`mutation($i: I!) { ${refund} tagsAdd(id: 1) { node { id } } }`, false],
    ['mutation { a(text: "@idempotent") { b } } # @idempotent', false],
    ['{ a @idempotent }', false],
  ])('is idempotent only as a mutation all of whose fields are: %s is %p', (text, expected) => {
    expect(query(text).hasOwnIdempotency).toBe(expected);
  });

  test('has a cost key that holds what the cost depends on, and nothing that a person typed', () => {
    const text = 'query($n: Int!, $q: String) { orders(first: $n, query: $q) { nodes { id } } }';
    const key = (variables: object): string | null => query(text, { variables }).costKey;
    expect(key({ n: 10, q: 'email:a@b.c' })).toBe(key({ q: 'email:other', n: 10 }));
    expect(key({ n: 10 })).not.toBe(key({ n: 20 }));
    expect(key({ n: 10, q: 'email:a@b.c' })).not.toContain('a@b.c');
    expect(key(Object.fromEntries(Array.from({ length: 257 }, (_, at) => [`v${at}`, at])))).toBeNull();
  });

  test('reserves points for unknown documents, and none for the storefront API', () => {
    expect([query('{ a }').costs, query('mutation { a }').costs]).toEqual([{ cost: 50 }, { cost: 10 }]);
    const storefront = graphql({ query: '{ a }' }, '/api/2026-10/graphql.json');
    expect([storefront.safe, storefront.costs]).toEqual([true, {}]);
  });

  test('reads a document sent as application/graphql', () =>
    expect(commerce('/admin/api/graphql.json', '{ a }', { type: 'application/graphql' }).safe).toBe(true));
});

describe('repeating a POST to a language model', () => {
  const [deployments, project] = ['/openai/deployments', '/v1/projects/p/locations/l'];
  test.each([
    ...words('/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens'),
    ...words('/v1/embeddings /v1/rerank /v1/moderations /v1/agents/completions /v1/never-heard-of /'),
    ...words('/v1/images/generations /v1/images/edits /v1/audio/speech /v1/audio/transcriptions'),
    ...words(
      '/v1beta/models/gemini-2.5-pro:generateContent /v1beta/models/text-embedding:batchEmbedContents',
    ),
    ...words('/v1beta/models/m:streamGenerateContent?alt=sse /v1beta/tunedModels/mine:generateContent'),
    `${project}/publishers/google/models/m:predict`,
    ...words('/model/anthropic.claude/invoke /model/anthropic.claude/converse-stream'),
    ...words(`${deployments}/batches/chat/completions?api-version=1 ${deployments}/files/embeddings`),
    '/v1/chat/completions?files=batches',
  ])('only costs money: %s', (path) => {
    expect(post(path, {}).onlyCosts).toBe(true);
    expect(called(path, { kind: 'generic' }).onlyCosts).toBe(false);
    expect(called(path, { method: 'PATCH' }).onlyCosts).toBe(false);
  });

  test.each([
    ...words('/v1/fine_tuning/jobs /v1/fine_tuning/jobs/j1/cancel /v1/fine-tunes /model-customization-jobs'),
    ...words('/v1/batches /v1/batches/ /V1/Batches /v1/%62atches /v1/batches?after=completions'),
    ...words('/v1/messages/batches /v1/batch/jobs /async-invoke'),
    ...words('/v1/files /openai/files?api-version=1 /v1/uploads/u1/parts /upload/v1beta/files'),
    ...words('/v1/assistants /v1/threads /v1/threads/runs /v1/threads/t1/runs /v1/threads/t1/messages'),
    ...words('/v1/vector_stores/v1/files /v1/containers /v1/conversations /v1/evals/e1/runs'),
    ...words('/v1beta/cachedContents /v1beta/tunedModels /v1beta/models/gemini-2.5-pro:batchGenerateContent'),
    ...words(`${project}/tuningJobs ${project}/batchPredictionJobs`),
  ])('creates another one: %s', (path) => expect(post(path, {}).onlyCosts).toBe(false));

  test.each([
    ['', null],
    ['not json', 'text/plain'],
    ['--b\r\n', 'multipart/form-data; boundary=b'],
  ])('is judged by the path alone, whatever the body and its type: %j %s', (body, type) => {
    expect(called('/v1/files', { body, type }).onlyCosts).toBe(false);
    expect(called('/v1/audio/transcriptions', { body, type }).onlyCosts).toBe(true);
  });
});
