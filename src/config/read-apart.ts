/**
 * Settings of a text that is checked in a thread of its own. Owns nothing but the order: check there, build here in slices.
 */
import type { Slices } from '../slices.ts';
import { checkInThread, type StartThread } from './check-thread.ts';
import { readSettings, readText, settingsOf, textDigest, type ConfigSource } from './load.ts';
import type { Settings } from './settings.ts';

export interface ApartOptions {
  readonly slices: Slices;
  /** Ends the thread. */
  readonly signal: AbortSignal;
  /** Replaces the thread that checks texts. */
  readonly startThread?: StartThread | undefined;
}

/**
 * Settings of a text of the file, while calls go on.
 * @throws ConfigError, CheckThreadError, or `signal.reason`
 */
export async function settingsApart(
  text: string,
  { path, env }: ConfigSource,
  { slices, signal, startThread }: ApartOptions,
): Promise<Settings> {
  const checked = await checkInThread({ text, path, env }, signal, startThread);
  const settings = await settingsOf(checked, path, slices);
  signal.throwIfAborted();
  return settings;
}

/** Longer texts are checked in a thread also at the start, characters: a thousand workspaces. */
const longText = 300_000;

/**
 * Settings and digest of the file at the start. What checking a long text takes, 100 KB for each KB, is given back with the
 * thread; in this one it would stay part of the process.
 * @throws ConfigError, CheckThreadError
 */
export async function firstSettings(
  source: ConfigSource,
  slices: Slices,
): Promise<{ settings: Settings; digest: string }> {
  const text = readText(source.path);
  if (text.length < longText) return readSettings(source);
  const settings = await settingsApart(text, source, { slices, signal: new AbortController().signal });
  return { settings, digest: textDigest(text) };
}
