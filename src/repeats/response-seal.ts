/**
 * The form in which Redis holds responses: encrypted and authenticated (AES-256-GCM) under a key that is derived (HKDF-SHA-256)
 * from the label key, the workspace and the idempotency key. Redis knows none of the three. Owns: that form. Keeps: bytes that
 * cannot be opened are treated as no response, whatever the reason; the end of their validity is inside, so that whoever can write to
 * Redis cannot make an expired response count.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { Refusal, refusals, type RefusalCode, type RefusalDetails } from '../errors.ts';
import type { CallResult, KeptResponse, RepeatKey } from './repeat.ts';

const ivBytes = 12;
const tagBytes = 16;
const lengthBytes = 4;
/** The tag length is stated, because Node would otherwise accept a shorter tag when it decrypts. */
const tagged = { authTagLength: tagBytes };

/** The result of a call for repeats of it at other replicas: its response, or the refusal that its client got. */
export type SealedResult =
  | { readonly kind: 'response'; readonly response: KeptResponse }
  | { readonly kind: 'refusal'; readonly refusal: Refusal };

interface Head {
  /** Milliseconds since the epoch: what is opened later has expired. */
  readonly until: number;
  readonly status?: number;
  readonly fields?: readonly string[];
  readonly shouldRetry?: boolean | null;
  readonly code?: RefusalCode;
  readonly details?: RefusalDetails;
}

/** What is sealed. */
interface Sealing {
  /** Binds the result to one execution of the call (the claim's holder); `null` = a kept response, which is valid whichever replica stores it. */
  readonly run: string | null;
  readonly result: SealedResult;
  /** Milliseconds since the epoch. */
  readonly until: number;
}

export function sealResponse(labelKey: string, key: RepeatKey, { run, result, until }: Sealing): Buffer {
  const body = result.kind === 'response' ? result.response.body : Buffer.alloc(0);
  const head = Buffer.from(JSON.stringify({ until, ...headOf(result) }), 'utf8');
  const length = Buffer.alloc(lengthBytes);
  length.writeUInt32BE(head.length);
  const iv = randomBytes(ivBytes);
  const cipher = createCipheriv('aes-256-gcm', sealKey(labelKey, key), iv, tagged);
  cipher.setAAD(Buffer.from(`${key.name} ${key.fingerprint} ${run ?? ''}`, 'utf8'));
  const sealed = [cipher.update(length), cipher.update(head), cipher.update(body), cipher.final()];
  return Buffer.concat([iv, ...sealed, cipher.getAuthTag()]);
}

/**
 * Decrypts a result. `null` = not sealed by Sluice, sealed for another call or under another label key, or damaged.
 * `now`: milliseconds since the epoch.
 */
export function openResponse(
  labelKey: string,
  key: RepeatKey,
  { run, sealed, now }: { readonly run: string | null; readonly sealed: Buffer; readonly now: number },
): SealedResult | 'expired' | null {
  try {
    const end = sealed.length - tagBytes;
    const iv = sealed.subarray(0, ivBytes);
    const decipher = createDecipheriv('aes-256-gcm', sealKey(labelKey, key), iv, tagged);
    decipher.setAAD(Buffer.from(`${key.name} ${key.fingerprint} ${run ?? ''}`, 'utf8'));
    decipher.setAuthTag(sealed.subarray(end));
    const bytes = Buffer.concat([decipher.update(sealed.subarray(ivBytes, end)), decipher.final()]);
    const bodyAt = lengthBytes + bytes.readUInt32BE();
    const head = JSON.parse(bytes.subarray(lengthBytes, bodyAt).toString('utf8')) as Head;
    if (typeof head.until !== 'number') return null;
    return now < head.until ? readResult(head, bytes.subarray(bodyAt)) : 'expired';
  } catch {
    return null;
  }
}

function headOf(result: SealedResult): Omit<Head, 'until'> {
  if (result.kind === 'refusal') return { code: result.refusal.code, details: result.refusal.details };
  const { status, rawFields, shouldRetry } = result.response;
  return { status, fields: rawFields, shouldRetry };
}

function readResult(
  { status, fields, shouldRetry = null, code, details }: Head,
  body: Buffer,
): SealedResult | null {
  if (code !== undefined && code in refusals) {
    return { kind: 'refusal', refusal: new Refusal(code, details) };
  }
  if (status === undefined || fields === undefined) return null;
  return { kind: 'response', response: { status, rawFields: fields, body, shouldRetry } };
}

function sealKey(labelKey: string, { secret }: RepeatKey): Buffer {
  return Buffer.from(hkdfSync('sha256', labelKey, secret.workspaceId, `sluice answer ${secret.key}`, 32));
}

/** The result that repeats get which waited for a call whose response is not kept; `null` = there is none to give. */
export function resultOf(ended: CallResult): SealedResult | null {
  if (ended.kind === 'answered') {
    return ended.response === 'too_large' ? null : { kind: 'response', response: ended.response };
  }
  return ended.failure instanceof Refusal ? { kind: 'refusal', refusal: ended.failure } : null;
}
