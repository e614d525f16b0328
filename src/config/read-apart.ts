/**
 * Settings of a text, while calls go on. Owns nothing but the order: a long text is checked in a thread of its own, and the
 * settings are built here in slices.
 */
import type { Slices } from '../slices.ts';
import { checkText } from './check-text.ts';
import { checkInThread, type StartThread } from './check-thread.ts';
import { checkedInput } from './checked-input.ts';
import { readSettings, readText, settingsOf, textDigest, type ConfigSource } from './load.ts';
import type { Settings } from './settings.ts';

export interface ApartOptions {
  readonly slices: Slices;
  /** Ends the thread. */
  readonly signal: AbortSignal;
  /** Replaces the thread that checks long texts, and has it check short ones too. */
  readonly startThread?: StartThread | undefined;
}

/**
 * Texts of so many characters at most, some hundred workspaces, are checked in this thread: that takes it a few milliseconds, and
 * a thread half a second to start.
 */
export const maxShortText = 12_000;

/**
 * Settings of a text of the file, while calls go on.
 * @throws ConfigError, CheckThreadError, or `signal.reason`
 */
export async function settingsApart(
  text: string,
  source: ConfigSource,
  { slices, signal, startThread }: ApartOptions,
): Promise<Settings> {
  const isShort = startThread === undefined && text.length <= maxShortText;
  const checked = isShort
    ? checkedInput(checkText(text, source))
    : await checkInThread({ text, ...source }, signal, startThread);
  const settings = await settingsOf(checked, source.path, slices);
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
