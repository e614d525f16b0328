/**
 * Does the work of an admitted call: latency, body or stream, and the faults that take effect after admission.
 *
 * Owns: the response from the first wait to the last byte, output-token charges, giving back what was not used.
 * Does not own: admission. Invariant: a client that leaves stops the work, and nothing is refunded for it.
 */
import type { Clock, Random } from '../clock.ts';
import type { Fault } from '../faults.ts';
import type { Admitted } from './call.ts';
import { chatBody, chatStream, type Identity } from './chat.ts';
import { messagesBody, messagesFailure, messagesStream } from './messages.ts';
import type { LanguageModelSettings } from './options.ts';
import { event, replyTo, type Part, type Reply } from './reply.ts';
import { responsesBody, responsesFailure, responsesStream } from './responses.ts';
import { openaiError, rateLimitText } from './texts.ts';
import { embeddingsBody, imagesBody } from './vectors-and-pictures.ts';

export interface WorkContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: LanguageModelSettings;
}

const json = { 'content-type': 'application/json' };

export async function work(call: Admitted, fault: Fault | undefined, context: WorkContext): Promise<void> {
  const { exchange, entry } = call;
  if (fault !== undefined) entry.fault = fault.kind;
  entry.executed = false;
  if (fault?.kind === 'hang') return;
  const reply = replyTo(call.body, call.cost, context.settings.replyTokens);
  const streamed = call.body['stream'] === true && ['chat', 'responses', 'messages'].includes(call.endpoint);
  if (!(await exchange.sleep(firstByteMs(reply, streamed, fault, context)))) return;
  entry.executed = fault?.kind !== 'late-429';
  if (answeredByFault(call, fault)) return;
  const now = context.clock.now();
  const identity = {
    id: context.random.hex(12),
    created: Math.floor(now / 1000),
    model: call.model,
  };
  if (streamed) await stream(call, reply, identity, fault, context);
  else await whole(call, reply, identity, fault, context);
  giveUnusedTokensBack(call, reply, context);
}

function firstByteMs(
  reply: Reply,
  streamed: boolean,
  fault: Fault | undefined,
  { settings, random }: WorkContext,
): number {
  if (fault?.kind === 'late-429') return fault.ms ?? 500;
  const { baseMs, perTokenMs, jitter } = settings.latency;
  const plain = baseMs + (streamed ? 0 : perTokenMs * reply.words.length);
  const swing = jitter > 0 ? plain * jitter * (random.next() * 2 - 1) : 0;
  return plain + swing + (fault?.kind === 'slow' ? (fault.ms ?? 0) : 0);
}

/** True when the fault has answered (or cut) instead of the work. */
function answeredByFault({ exchange }: Admitted, fault: Fault | undefined): boolean {
  const kind = fault?.kind;
  if (kind === 'reset-before-response') exchange.cut();
  else if (kind === '500') {
    const text = 'The server had an error while processing your request. Sorry about that!';
    exchange.reply(500, json, JSON.stringify(openaiError(text, 'server_error', null)));
  } else if (kind === '502-html') {
    exchange.reply(
      502,
      { 'content-type': 'text/html' },
      '<html><body><h1>502 Bad Gateway</h1></body></html>',
    );
  } else if (kind === '503') {
    exchange.reply(503, { 'content-type': 'text/plain' }, 'upstream connect error or disconnect/reset');
  } else if (kind === 'late-429') {
    const headers = {
      ...json,
      'openai-processing-ms': String(fault?.ms ?? 500),
      'openai-version': '2020-10-01',
    };
    exchange.reply(
      429,
      headers,
      JSON.stringify(openaiError('Rate limit reached', 'tokens', 'rate_limit_exceeded')),
    );
  } else return false;
  return true;
}

async function whole(
  call: Admitted,
  reply: Reply,
  identity: Identity,
  fault: Fault | undefined,
  context: WorkContext,
): Promise<void> {
  const body = JSON.stringify(bodyFor(call, reply, identity, context.settings));
  produced(call, reply.outputTokens, context);
  if (fault?.kind !== 'reset-mid-stream') {
    call.exchange.reply(200, { ...json, ...call.headers }, body);
    return;
  }
  call.exchange.begin(200, { ...json, ...call.headers, 'content-length': String(Buffer.byteLength(body)) });
  await call.exchange.write(body.slice(0, body.length / 2));
  if (await call.exchange.sleep(1)) call.exchange.cut();
}

function bodyFor(call: Admitted, reply: Reply, identity: Identity, settings: LanguageModelSettings): unknown {
  switch (call.endpoint) {
    case 'chat':
      return chatBody(reply, identity);
    case 'responses':
      return responsesBody(reply, identity);
    case 'messages':
      return messagesBody(reply, identity);
    case 'embeddings':
      return embeddingsBody(call.body, call.cost, call.model, settings.embeddingDimensions);
    case 'images':
      return imagesBody(call.cost, identity);
  }
}

async function stream(
  call: Admitted,
  reply: Reply,
  identity: Identity,
  fault: Fault | undefined,
  context: WorkContext,
): Promise<void> {
  const { exchange } = call;
  const breaks =
    fault?.kind === 'stream-error' || fault?.kind === 'reset-mid-stream' ? (fault.afterChunks ?? 1) : null;
  exchange.begin(200, { ...call.headers, 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
  let sent = 0;
  for (const part of partsFor(call, reply, identity)) {
    if (sent === breaks) return await broken(call, reply, identity, fault, context);
    if (part.tokens > 0 && !(await exchange.sleep(context.settings.latency.perTokenMs))) return;
    produced(call, part.tokens, context);
    if (!(await exchange.write(part.text))) return;
    sent += 1;
  }
  exchange.end();
}

function partsFor(call: Admitted, reply: Reply, identity: Identity): readonly Part[] {
  if (call.endpoint === 'messages') return messagesStream(reply, identity);
  if (call.endpoint === 'responses') return responsesStream(reply, identity);
  return chatStream(call.body, reply, identity);
}

/** A 200 that ends in an error: the throttle text of the token bucket, as recorded (U08). */
async function broken(
  call: Admitted,
  reply: Reply,
  identity: Identity,
  fault: Fault | undefined,
  { clock, settings }: WorkContext,
): Promise<void> {
  if (fault?.kind === 'reset-mid-stream') {
    if (await call.exchange.sleep(1)) call.exchange.cut();
    return;
  }
  const meter =
    call.meters.find(({ dimension }) => ['tpm', 'itpm', 'tpd'].includes(dimension)) ?? call.meters[0];
  const now = clock.monotonic();
  const limit = meter?.bucket.limit ?? 0;
  const text = rateLimitText({
    dialect: settings.dialect,
    model: call.model,
    family: call.family,
    org: call.account.org,
    project: meter?.owner === 'project' ? call.account.project : null,
    dimension: meter?.dimension ?? 'tpm',
    limit,
    used: limit - (meter?.bucket.remaining(now) ?? 0),
    requested: call.cost.tokens,
    waitMs: meter?.bucket.waitMs(call.cost.tokens, now) ?? 0,
  });
  await call.exchange.write(failure(call, reply, identity, text));
  call.exchange.end();
}

function failure(call: Admitted, reply: Reply, identity: Identity, text: string): string {
  if (call.endpoint === 'messages') return messagesFailure('rate_limit_error', text, call.requestId);
  if (call.endpoint === 'responses') return responsesFailure(reply, identity, 'rate_limit_exceeded', text);
  return event(openaiError(text, 'tokens', 'rate_limit_exceeded'));
}

/** Output buckets are charged while the response is produced. */
function produced(call: Admitted, tokens: number, { clock }: WorkContext): void {
  if (tokens === 0) return;
  for (const { dimension, bucket } of call.meters) {
    if (dimension === 'otpm') bucket.take(tokens, clock.monotonic());
  }
}

function giveUnusedTokensBack(call: Admitted, reply: Reply, { clock, settings }: WorkContext): void {
  if (settings.reconcile !== 'actual' || call.exchange.gone()) return;
  const output = call.endpoint === 'embeddings' || call.endpoint === 'images' ? 0 : reply.outputTokens;
  const unused = call.cost.tokens - reply.promptTokens - output;
  for (const { dimension, bucket } of call.meters) {
    if (dimension === 'tpm' || dimension === 'tpd') bucket.take(-unused, clock.monotonic());
  }
}
