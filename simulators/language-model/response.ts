/**
 * The first step of a call: who calls, which endpoint, which model. What is not a call to a known model is answered here.
 *
 * Owns: 400, 401, 404 and the list of models; none of them meets a limit. Does not own: what follows (`decide.ts`).
 */
import { textOf } from '../json.ts';
import { noFacts, type ArrivalNote } from '../recorder.ts';
import type { Exchange } from '../exchange.ts';
import { belongsToAccount } from './accounts.ts';
import { send, type LanguageModelContext } from './context.ts';
import { costOf } from './cost.ts';
import { decide } from './decide.ts';
import { changeLimit } from './faults.ts';
import { ids, rejected } from './refusals.ts';
import { noCacheUse } from './prompt-cache.ts';
import { bodyOf, endpointOf } from './request.ts';

export async function respond(
  exchange: Exchange,
  note: ArrivalNote,
  context: LanguageModelContext,
): Promise<void> {
  exchange.skewMs = context.settings.clockSkewSeconds * 1000;
  const early: Early = { exchange, note, context, requestId: `req_${context.random.hex(16)}` };
  const requested = endpointOf(exchange.method, exchange.path);
  const account = context.accounts.get(note.key);
  if (account === undefined || !belongsToAccount(exchange.request.headers, account)) {
    reject(early, 'unauthenticated', [401, 'invalid_api_key', 'Incorrect API key provided.']);
    return;
  }
  if (requested.kind === 'models') {
    listModels(early, requested.id);
    return;
  }
  if (requested.kind === 'unknown') {
    const text = `Invalid URL (${exchange.method} ${exchange.path})`;
    reject(early, 'not-found', [404, 'unknown_url', text]);
    return;
  }
  const body = await bodyOf(exchange);
  if (body === undefined) {
    const text = 'We could not parse the JSON body of your request.';
    reject(early, 'invalid', [400, 'invalid_json', text]);
    return;
  }
  const model = requested.deployment === '' ? (textOf(body['model']) ?? '') : requested.deployment;
  if (!Object.hasOwn(context.settings.models, model)) {
    const text = `The model \`${model}\` does not exist or you do not have access to it.`;
    reject(early, 'not-found', [404, 'model_not_found', text]);
    return;
  }
  changeLimit({ key: note.key, model, store: '', path: exchange.path }, context);
  const family = context.meters.familyOf(model);
  const now = context.clock.monotonic();
  const cache =
    requested.endpoint === 'messages'
      ? context.promptCache.read(`${account.org}|${family}|`, body, {
          now,
          lifeMs: context.settings.promptCacheSeconds * 1000,
        })
      : noCacheUse;
  const call = {
    exchange,
    note,
    endpoint: requested.endpoint,
    body,
    account,
    model,
    family,
    cost: costOf(requested.endpoint, body, context.settings, cache),
    meters: context.meters.of(account, model, now),
    requestId: early.requestId,
  };
  await decide(call, context);
}

/** A request that is not yet known to be a call to a model. */
interface Early {
  readonly exchange: Exchange;
  readonly note: ArrivalNote;
  readonly context: LanguageModelContext;
  readonly requestId: string;
}

function listModels(early: Early, id: string | null): void {
  const { exchange, note, context, requestId } = early;
  const all = Object.keys(context.settings.models).map((name) => ({
    id: name,
    object: 'model',
    created: 1_700_000_000,
    owned_by: 'system',
  }));
  const body = id === null ? { object: 'list', data: all } : all.find((model) => model.id === id);
  if (body === undefined) {
    reject(early, 'not-found', [404, 'model_not_found', 'No such model.']);
    return;
  }
  context.recorder.record(exchange, note, { ...noFacts, decision: 'admitted', executed: true });
  send(exchange, { status: 200, headers: ids(context.settings, requestId), body });
}

function reject(
  { exchange, note, context, requestId }: Early,
  decision: 'unauthenticated' | 'not-found' | 'invalid',
  [status, code, text]: [400 | 401 | 404, string, string],
): void {
  context.recorder.record(exchange, note, { ...noFacts, decision });
  send(exchange, rejected(status, code, text, context.settings, requestId));
}
