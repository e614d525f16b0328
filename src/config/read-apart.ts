/**
 * Reads settings from the configuration text while calls go on. Owns only which step runs where: a text is checked in this thread or,
 * when it is long, in a thread of its own, and the settings are built in this thread in slices.
 */
import type { Slices } from '../slices.ts';
import { checkText } from './check-text.ts';
import { checkInThread, type StartThread } from './check-thread.ts';
import { checkedInput } from './checked-input.ts';
import { readSettings, readText, settingsOf, textDigest, type ConfigSource } from './load.ts';
import { fileSchema } from './schema.ts';
import type { Settings } from './settings.ts';

export interface ApartOptions {
  readonly slices: Slices;
  /** Its abort ends the thread. */
  readonly signal: AbortSignal;
  /** Tests replace the thread that checks the text by it. When set, short texts are checked in it as well. */
  readonly startThread?: StartThread | undefined;
}

/**
 * While calls go on, a text of up to this many characters, some hundred workspaces, is checked in this thread: that takes a few
 * milliseconds, while another thread takes half a second to start.
 */
export const maxReloadLengthHere = 12_000;

/**
 * Reads settings from a text of the file, while calls go on.
 * @throws ConfigError, CheckThreadError, or `signal.reason`
 */
export async function settingsApart(
  text: string,
  source: ConfigSource,
  { slices, signal, startThread }: ApartOptions,
): Promise<Settings> {
  const isShort = startThread === undefined && text.length <= maxReloadLengthHere;
  const checked = isShort
    ? checkedInput(checkText(fileSchema, text, source))
    : await checkInThread({ text, ...source }, signal, startThread);
  const settings = await settingsOf(checked, source, slices);
  signal.throwIfAborted();
  return settings;
}

/** At the start, a text of fewer characters, about a thousand workspaces, is checked in this thread. */
const maxFirstLengthHere = 300_000;

/**
 * Reads settings and digest of the file at the start. Checking needs about 100 KB of memory per KB of text; a thread of its own frees
 * it when it ends, while this thread would keep it in the process.
 * @throws ConfigError, CheckThreadError
 */
export async function firstSettings(
  source: ConfigSource,
  slices: Slices,
): Promise<{ settings: Settings; digest: string }> {
  const text = readText(source.path);
  if (text.length < maxFirstLengthHere) return readSettings(source);
  const settings = await settingsApart(text, source, { slices, signal: new AbortController().signal });
  return { settings, digest: textDigest(text) };
}
