/**
 * A language-model API with real limits: OpenAI, Azure OpenAI, Groq or Anthropic by `dialect`.
 *
 * Owns: what `configure` and `reset` do, which bucket is meant; the parts of a simulator, put together.
 * Does not own: the steps of a call (`language-model/response.ts`, `decide.ts`, `work.ts`), formats (texts, fields,
 * bodies have their own files), bucket arithmetic (`bucket.ts`).
 * Invariant: decisions are made in the order in which bodies are complete, at one instant of the given clock,
 * and each is in the log.
 */
import type { Bucket } from './bucket.ts';
import { FaultQueue } from './faults.ts';
import { textOf, type Json } from './json.ts';
import { accountsOf, keyOf } from './language-model/accounts.ts';
import { respond } from './language-model/response.ts';
import { configure, use, type LanguageModelContext } from './language-model/context.ts';
import { Meters } from './language-model/meters.ts';
import { PromptCache } from './language-model/prompt-cache.ts';
import {
  dimensions,
  languageModelDefaults,
  type Dimension,
  type LanguageModelOptions,
  type LanguageModelSettings,
} from './language-model/options.ts';
import { Recorder } from './recorder.ts';
import { SeededRandom } from './seeded-random.ts';
import { createSimulator, settle, type Simulator } from './simulator.ts';

export type { LanguageModelOptions, LanguageModelSettings } from './language-model/options.ts';

/** Which bucket an outside consumer takes from or closes; default: `rpm` of the first model in the first organisation. */
export interface LanguageModelBucketChoice {
  readonly dimension?: Dimension;
  readonly model?: string;
  readonly org?: string;
  /** Take from the project's own bucket instead of the organisation's. */
  readonly project?: string;
}

export type LanguageModelSimulator = Simulator<LanguageModelSettings, LanguageModelBucketChoice>;

export function createLanguageModelSimulator(options: LanguageModelOptions = {}): LanguageModelSimulator {
  const { settings, fixed } = settle(options, languageModelDefaults);
  const context: LanguageModelContext = {
    clock: fixed.clock,
    recorder: new Recorder(fixed.clock, fixed.logLimit, fixed.recordHeaders),
    faults: new FaultQueue(),
    meters: new Meters(settings),
    promptCache: new PromptCache(),
    random: new SeededRandom(fixed.seed),
    settings,
    accounts: accountsOf(settings),
  };
  return createSimulator({
    clock: context.clock,
    recorder: context.recorder,
    faults: context.faults,
    keyOf: (headers) => keyOf(headers, context.settings.dialect),
    respond: async (exchange, note) => await respond(exchange, note, context),
    buckets: (now) => context.meters.snapshot(now),
    reset() {
      context.meters.reset();
      context.promptCache.clear();
      context.random = new SeededRandom(fixed.seed);
      use(settings, context);
    },
    configure: (part) => configure(part, context),
    bucketOf: (which, now) => bucketOf(which, now, context),
    choiceOf,
  });
}

function bucketOf(which: LanguageModelBucketChoice, now: number, context: LanguageModelContext): Bucket {
  const { meters, settings } = context;
  const model = which.model ?? Object.keys(settings.models)[0] ?? '';
  const org = which.org ?? Object.keys(settings.orgs)[0] ?? '';
  const project = which.project ?? Object.keys(settings.orgs[org]?.projects ?? {})[0] ?? '';
  const owner = which.project === undefined ? 'org' : 'project';
  const meter = meters
    .of({ org, project }, model, now)
    .find((one) => one.owner === owner && one.dimension === (which.dimension ?? 'rpm'));
  if (meter === undefined) throw new Error(`nothing is limited for ${JSON.stringify(which)}`);
  return meter.bucket;
}

function choiceOf(part: Json): LanguageModelBucketChoice {
  const { model, org, project } = {
    model: textOf(part['model']),
    org: textOf(part['org']),
    project: textOf(part['project']),
  };
  const dimension = dimensions.find((name) => name === part['dimension']);
  return {
    ...(model === undefined ? {} : { model }),
    ...(org === undefined ? {} : { org }),
    ...(project === undefined ? {} : { project }),
    ...(dimension === undefined ? {} : { dimension }),
  };
}
