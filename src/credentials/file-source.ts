/**
 * A credential whose value is the text of a file. The file is read again when it changes, also by the swap of a symbolic link, as
 * Kubernetes renews the files of a mounted Secret (a new folder beside the old one, then `..data` is renamed over).
 *
 * Owns: whether the text that was read replaces the value. Does not own: noticing that the file changed (`file-watch.ts`), how often
 * refusals may ask for a reading (`renewal.policy.ts`).
 * Keeps: no call waits for a reading; a file that is missing or empty, or whose text cannot be sent in a field, replaces nothing. A change is
 * read when its writing has had a moment to end (`settleMs` of `file-watch.ts`).
 */
import { open } from 'node:fs/promises';
import type { Clock } from '../clock.ts';
import { fieldValueFault } from '../config/names.ts';
import type { CredentialFault } from '../errors.ts';
import { FileWatch, pollMs } from '../file-watch.ts';
import { RefusalGap } from './renewal.policy.ts';
import type { Source, SourceEvents, CredentialState } from './source.ts';

/** A longer file is no credential. Bytes. */
const maxBytes = 65_536;

export interface FileParts extends SourceEvents {
  readonly path: string;
  /** Put before the text, such as `Bearer `. */
  readonly prefix: string;
  readonly clock: Pick<Clock, 'after' | 'monotonic'>;
}

type Reading =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'failed'; readonly fault: CredentialFault };

export class FileSource implements Source {
  readonly #parts: FileParts;
  readonly #refusals = new RefusalGap();
  #state: CredentialState = { kind: 'unavailable', fault: null, retryInMs: 0 };
  /** The text in use, without the prefix. */
  #text: string | null = null;
  /** Why the last reading failed; `null` = it did not. */
  #fault: CredentialFault | null = null;
  #reading: Promise<void> | null = null;
  readonly #watch: FileWatch;
  #isClosed = false;

  constructor(parts: FileParts) {
    this.#parts = parts;
    this.#watch = new FileWatch({ ...parts, onCheck: () => void this.#check() });
    void this.#check();
  }

  now(): CredentialState {
    return this.#state;
  }

  /** Resolves with true when a text that was not refused is in use. */
  async refused(version: number): Promise<boolean> {
    if (!this.#isInUse(version)) return true;
    if (!this.#refusals.mayRenew(this.#parts.clock.monotonic())) return false;
    // A reading that began before the refusal may have seen the old content.
    await this.#reading;
    await this.#check();
    return !this.#isInUse(version);
  }

  accepted(version: number): void {
    if (this.#isInUse(version)) this.#refusals.onAccepted();
  }

  expiresInMs(): null {
    return null;
  }

  close(): void {
    this.#isClosed = true;
    this.#watch.close();
  }

  #isInUse(version: number): boolean {
    return this.#state.kind === 'usable' && this.#state.version === version;
  }

  /** Reads the file; while a reading is under way, joins that one. */
  #check(): Promise<void> {
    this.#reading ??= readCredential(this.#parts.path).then((reading) => {
      this.#reading = null;
      if (!this.#isClosed) this.#take(reading);
    });
    return this.#reading;
  }

  #take(reading: Reading): void {
    if (reading.kind === 'failed') return this.#fail(reading.fault);
    this.#fault = null;
    if (reading.text !== this.#text) this.#use(reading.text);
  }

  #use(text: string): void {
    const { prefix, onRenewal } = this.#parts;
    const version = this.#state.kind === 'usable' ? this.#state.version + 1 : 1;
    this.#text = text;
    this.#state = { kind: 'usable', value: prefix + text, version };
    onRenewal('renewed');
  }

  /** The file cannot be used: the value in use stays. Reported once, until the fault changes or a reading succeeds. */
  #fail(fault: CredentialFault): void {
    if (fault === this.#fault) return;
    this.#fault = fault;
    if (this.#state.kind === 'unavailable') this.#state = { kind: 'unavailable', fault, retryInMs: pollMs };
    this.#parts.onRenewal(fault);
  }
}

/** Reads the credential in a file: its text without white space at either end. */
export async function readCredential(path: string): Promise<Reading> {
  try {
    const file = await open(path);
    try {
      const { bytesRead, buffer } = await file.read(Buffer.alloc(maxBytes + 1), 0, maxBytes + 1, 0);
      const text = buffer.toString('utf8', 0, bytesRead).trim();
      const isUsable = bytesRead <= maxBytes && text !== '' && fieldValueFault(text) === null;
      return isUsable ? { kind: 'text', text } : { kind: 'failed', fault: 'invalid' };
    } finally {
      await file.close();
    }
  } catch {
    return { kind: 'failed', fault: 'missing' };
  }
}
