/** Sluice as a new user runs it: by `npm`, with a file in a folder of its own; all of it gone after each test. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import { endAll, found, start, type Started } from './started.ts';

export const { key, hash } = createKey();
/** Ports that the system chooses, and no wait for load balancers at the end. */
export const server =
  'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainDelaySeconds: 0 }';
export const privacy = 'privacy: { labelKey: "a label key for tests only" }';
/** What is in sight without scrolling. */
const screenLines = 24;

const folders: string[] = [];

/** For `afterEach`. */
export async function clean(): Promise<void> {
  await endAll();
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true });
}

/** Path of a file with this text; nothing is written for `null`. */
export async function fileOf(text: string | null): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-new-user-'));
  folders.push(folder);
  const path = join(folder, 'sluice.yaml');
  if (text !== null) await writeFile(path, text);
  return path;
}

/** `npm start -- …`, without npm's own lines. */
export const npmStart = (...args: readonly string[]): Started =>
  start('npm', ['start', '--silent', '--', ...args]);

/** `sluice …`, the process that `npm run sluice -- …` becomes. */
export const sluice = (...args: readonly string[]): Started =>
  start(process.execPath, ['--max-semi-space-size=16', 'bin/sluice.mjs', ...args]);

/** What a command that ends has printed, as far as it is in sight. */
export async function said(command: Started): Promise<{ readonly code: unknown; readonly screen: string }> {
  const code = await command.ended;
  return { code, screen: command.printed().split('\n').slice(0, screenLines).join('\n') };
}

export interface Served {
  readonly process: Started;
  readonly url: string;
  readonly adminUrl: string;
  readonly path: string;
}

/** `sluice serve` with this file, once it serves. */
export async function serve(yaml: string): Promise<Served> {
  const path = await fileOf(yaml);
  const serving = start('npm', ['run', '--silent', 'sluice', '--', 'serve', '--config', path]);
  const text = await serving.saying('"message":"serving"');
  const address = (name: string): string => `http://127.0.0.1:${found(new RegExp(`"${name}":(\\d+)`), text)}`;
  return { process: serving, url: address('port'), adminUrl: address('adminPort'), path };
}

export interface Answered {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly heldBy: string;
}

/** A call that may not wait unless the fields say so, and what its response says of itself. */
export async function call(url: string, fields: Readonly<Record<string, string>> = {}): Promise<Answered> {
  const response = await fetch(url, { headers: { 'sluice-key': key, prefer: 'wait=0', ...fields } });
  const text = await response.text();
  const problem = (text.startsWith('{') ? JSON.parse(text) : {}) as Partial<Answered>;
  const { code = '', detail = '', heldBy = '' } = problem;
  return { status: response.status, code, detail, heldBy };
}
