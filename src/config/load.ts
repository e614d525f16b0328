/**
 * The one reader of the configuration file and of the environment: text in, frozen {@link Settings} out, or one
 * {@link ConfigError} with every problem. Invariant: nothing is returned that has not passed every check.
 */
import { createHash, randomBytes } from 'node:crypto';
import { accessSync, constants, readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { buildSettings } from './build.ts';
import { crossChecks } from './cross-checks.ts';
import type { ConfigDocument, Env } from './document.ts';
import { readDocument } from './document.ts';
import { explain, valueAt } from './explain.ts';
import { ConfigError, pathText } from './problem.ts';
import type { Finding, Path, Problem } from './problem.ts';
import { fileSchema } from './schema.ts';
import type { FileInput } from './schema.ts';
import type { Settings } from './settings.ts';

export { ConfigError } from './problem.ts';
export type { Problem } from './problem.ts';
export type { Env } from './document.ts';

/** Label key of this process when the file has none: the same at every reload, so that labels stay the same. */
const processLabelKey = randomBytes(32).toString('hex');

/** Where the configuration comes from. */
export interface ConfigSource {
  /** Path of the YAML file. */
  readonly path: string;
  readonly env: Env;
}

/** Reads and checks the file. @throws ConfigError */
export function loadSettings(source: ConfigSource): Settings {
  return readSettings(source).settings;
}

/** Like {@link loadSettings}, with the digest of the text, by which a later change is noticed. @throws ConfigError */
export function readSettings({ path, env }: ConfigSource): { settings: Settings; digest: string } {
  const text = readText(path);
  return { settings: checkFiles(parseSettings(text, { path, env }), path), digest: textDigest(text) };
}

/** Digest of a file's text; only equality means anything. */
export function textDigest(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** The file's text. @throws ConfigError when it cannot be read */
export function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const code =
      typeof error === 'object' && error !== null && 'code' in error ? String(error.code) : 'unknown';
    const reason = code === 'ENOENT' ? 'the file does not exist' : `the file cannot be read (${code})`;
    const fix = 'give the file with --config, or correct its place or permissions';
    throw new ConfigError(path, [{ path: '', line: null, reason, fix }]);
  }
}

/** Checks a configuration text; `path` only names it in messages. Touches no file. @throws ConfigError */
export function parseSettings(text: string, { path, env }: ConfigSource): Settings {
  const document = readDocument(text, env);
  if (document.faults.length > 0) {
    const fix = 'correct the YAML; texts with special characters belong in quotes';
    throw new ConfigError(
      path,
      document.faults.map(({ line, reason }) => ({ path: '', line, reason, fix })),
    );
  }
  const { file, findings } = check(document);
  if (file === null || findings.length > 0) throw configError(path, document, findings);
  return buildSettings(file, processLabelKey);
}

function check(document: ConfigDocument): { file: FileInput | null; findings: Finding[] } {
  const first = fileSchema.safeParse(document.tree);
  const retyped = first.success
    ? 0
    : retypeReferences(
        document,
        first.error.issues.flatMap((i) => explain(i, null)),
      );
  const result = retyped === 0 ? first : fileSchema.safeParse(document.tree);
  const found = result.success ? [] : result.error.issues.flatMap((issue) => explain(issue, document.tree));
  const unfilled = new Set(document.missing.map(({ path }) => pathText(path)));
  const others = [...found, ...crossChecks(document.tree)].filter(
    ({ path }) => !unfilled.has(pathText(path)),
  );
  return { file: result.success ? result.data : null, findings: [...document.missing, ...others] };
}

/**
 * A variable holds text only. Where the schema refused such a text and it spells a number or truth value, that is what
 * the writer meant (`port: "${PORT}"`). Returns how many values were changed.
 */
function retypeReferences(document: ConfigDocument, refused: readonly Finding[]): number {
  const places = new Set(refused.map(({ path }) => pathText(path)));
  let changed = 0;
  for (const path of document.referenced) {
    const parent = valueAt(document.tree, path.slice(0, -1));
    const key = path.at(-1);
    const text = valueAt(document.tree, path);
    if (!places.has(pathText(path)) || typeof text !== 'string') continue;
    const meant = /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : ({ true: true, false: false } as const)[text];
    if (meant === undefined || key === undefined || typeof parent !== 'object' || parent === null) continue;
    Reflect.set(parent, key, meant);
    changed += 1;
  }
  return changed;
}

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

/** Makes the paths of certificate files absolute and sees that they can be read. */
function checkFiles(settings: Settings, path: string): Settings {
  const problems: Problem[] = [];
  const readable = (caFile: string, at: Path): string => {
    const file = resolve(dirname(path), caFile);
    try {
      accessSync(file, constants.R_OK);
    } catch {
      const fix =
        'give a PEM file that exists and may be read; relative paths start at the configuration file';
      problems.push({ path: pathText(at), line: null, reason: 'cannot be read', fix });
    }
    return file;
  };
  const upstreams = new Map(settings.upstreams);
  for (const [name, upstream] of settings.upstreams) {
    if (upstream.caFile === null) continue;
    const caFile = readable(upstream.caFile, ['upstreams', name, 'caFile']);
    upstreams.set(name, Object.freeze({ ...upstream, caFile }));
  }
  let { redis } = settings;
  if (typeof redis?.tls?.caFile === 'string') {
    const caFile = readable(redis.tls.caFile, ['redis', 'tls', 'caFile']);
    redis = Object.freeze({ ...redis, tls: Object.freeze({ caFile }) });
  }
  if (problems.length > 0) throw new ConfigError(path, problems);
  return Object.freeze({ ...settings, upstreams, redis });
}
