/**
 * From the text of a configuration file, or of a preset, to checked plain values, or one {@link ConfigError} with every problem. Touches
 * no file and fills in no keys that depend on others: it may run in a thread of its own.
 */
import type { z } from 'zod';
import { isDurationKey, secondsOf } from '../duration.policy.ts';
import { type ConfigDocument, type Env, readDocument } from './document.ts';
import { explain, valueAt } from './explain.ts';
import { ConfigError, pathText, type Finding } from './problem.ts';

/** Where the configuration comes from. */
export interface ConfigSource {
  /** Path of the YAML file. */
  readonly path: string;
  readonly env: Env;
}

/** Checks a text by the schema of its kind of file; `path` only names it in messages. @throws ConfigError */
export function checkText<Schema extends z.ZodType>(
  schema: Schema,
  text: string,
  { path, env }: ConfigSource,
): z.output<Schema> {
  const document = readDocument(text, env);
  if (document.faults.length > 0) {
    throw new ConfigError(
      path,
      document.faults.map((fault) => ({ path: '', ...fault })),
    );
  }
  const { result, findings } = check(schema, document);
  if (!result.success || findings.length > 0) throw configError(path, document, findings);
  return result.data;
}

function check<Schema extends z.ZodType>(
  schema: Schema,
  document: ConfigDocument,
): { readonly result: z.ZodSafeParseResult<z.output<Schema>>; readonly findings: readonly Finding[] } {
  const first = schema.safeParse(document.tree);
  const retyped = first.success
    ? 0
    : retypeTexts(
        document,
        first.error.issues.flatMap((i) => explain(i, null)),
      );
  const result = retyped === 0 ? first : schema.safeParse(document.tree);
  const found = result.success ? [] : result.error.issues.flatMap((issue) => explain(issue, document.tree));
  const unfilled = new Set(document.missing.map(({ path }) => pathText(path)));
  const others = found.filter(({ path }) => !unfilled.has(pathText(path)));
  return { result, findings: [...document.missing, ...others] };
}

/**
 * Where the schema refused a text, what the writer meant by it: a variable holds text only, and may spell a number or truth value
 * (`port: "${PORT}"`), and a duration may have a unit. Returns how many values were changed.
 */
function retypeTexts(document: ConfigDocument, refused: readonly Finding[]): number {
  const references = new Set(document.referenced.map(pathText));
  let changed = 0;
  for (const { path } of refused) {
    const parent = valueAt(document.tree, path.slice(0, -1));
    const key = path.at(-1);
    const text = valueAt(document.tree, path);
    if (key === undefined || typeof text !== 'string' || typeof parent !== 'object' || parent === null)
      continue;
    const seconds = isDurationKey(key) ? secondsOf(text) : null;
    const meant = seconds ?? (references.has(pathText(path)) ? spelled(text) : undefined);
    if (meant === undefined) continue;
    Reflect.set(parent, key, meant);
    changed += 1;
  }
  return changed;
}

const spelled = (text: string): number | boolean | undefined =>
  /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : ({ true: true, false: false } as const)[text];

function configError(path: string, document: ConfigDocument, findings: readonly Finding[]): ConfigError {
  const problems = findings.map((finding) => ({
    path: finding.path.length === 0 ? '' : pathText(finding.path),
    line: document.lineOf(finding.path),
    reason: finding.reason,
    fix: finding.fix,
  }));
  problems.sort((a, b) => a.line - b.line);
  return new ConfigError(path, problems);
}
