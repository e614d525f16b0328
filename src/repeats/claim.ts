/** What replicas share of a call that may be repeated: who makes it, and what became of it. */
import { Refusal, refusals, type RefusalCode, type RefusalDetails } from '../errors.ts';
import type { Entry, MapKey } from '../replicated/shared-map.ts';
import type { CallResult, KeptResponse, RepeatKey } from './repeat.ts';

/** A claim that is not renewed for so long belongs to a replica that is gone. Milliseconds. */
export const claimMs = 5_000;
/** How long such a claim stays: a repeat then knows that its call is made again. Milliseconds. */
const traceMs = 60_000;
/** Life of a claim of a call under way, milliseconds. */
export const heldMs = claimMs + traceMs;
/** A repeat that comes later than this after its call was left is a new call. Milliseconds. */
export const leftKeptMs = 60_000;
/** How long the repeats that wait for a call can have a result that is not kept. Milliseconds. */
export const passedOnMs = 10_000;
/** A larger response that is not kept is given to nobody at another replica: its repeats make the call again. Bytes. */
const maxPassedOnBytes = 65_536;

export type ClaimState =
  /** It waits or is under way. `isAgain`: for a repeat, because the replica that made it is gone; it has been counted as made again. */
  | { readonly kind: 'held'; readonly isAgain: boolean }
  /** Its client left while it waited, `arrivedAgoMs` after it had come. */
  | { readonly kind: 'left'; readonly arrivedAgoMs: number }
  /** It has run. `until`: when the response expires, milliseconds since the epoch. */
  | { readonly kind: 'kept'; readonly response: KeptResponse | 'too_large'; readonly until: number }
  /** It has ended, and its result is only for the repeats that waited for it. */
  | { readonly kind: 'passed_on'; readonly result: KeptResponse | Refusal };

/** The owner of its entry is one making of the call by one replica. */
export interface Claim {
  readonly fingerprint: string;
  readonly state: ClaimState;
}

/** The entry of a call: whoever can write to Redis cannot open it without workspace, idempotency key and label key. */
export const entryOf = ({ name, secret }: Pick<RepeatKey, 'name' | 'secret'>): MapKey => ({
  name,
  secret: JSON.stringify([secret.workspaceId, secret.key]),
});

/** True when the replica that made the call is gone. */
export const isOrphaned = ({ value, leftMs }: Entry<Claim>): boolean =>
  value.state.kind === 'held' && leftMs <= traceMs;

/** True when whoever repeats the call makes it. `now`: milliseconds since the epoch. */
export function isFree(entry: Entry<Claim>, now: number): boolean {
  const { state } = entry.value;
  switch (state.kind) {
    case 'held':
      return isOrphaned(entry);
    case 'left':
    case 'passed_on':
      return true;
    case 'kept':
      return now >= state.until;
  }
}

/** How long ago the call had come whose client left; `null` = none has left. Milliseconds. */
export const arrivedAgoMs = ({ value: { state }, leftMs }: Entry<Claim>): number | null =>
  state.kind === 'left' ? state.arrivedAgoMs + leftKeptMs - leftMs : null;

/** What repeats get that waited for a call whose response is not kept; `null` = nothing. */
export function passedOn(ended: CallResult): KeptResponse | Refusal | null {
  if (ended.kind === 'failed') return ended.failure instanceof Refusal ? ended.failure : null;
  const { response } = ended;
  return response === 'too_large' || response.body.length > maxPassedOnBytes ? null : response;
}

interface Head extends Pick<Claim, 'fingerprint'> {
  readonly state: Exclude<ClaimState, { kind: 'kept' | 'passed_on' }> | { kind: 'kept' | 'passed_on' };
  readonly until?: number;
  readonly response?: Omit<KeptResponse, 'body'> | 'too_large';
  readonly refusal?: { readonly code: RefusalCode; readonly details: RefusalDetails };
}

const lengthBytes = 4;

/** A claim as bytes: length of the head, the head as JSON, the body of a response. */
export const claimCodec = {
  write(claim: Claim): Buffer {
    const [head, body] = partsOf(claim);
    const text = Buffer.from(JSON.stringify(head), 'utf8');
    const length = Buffer.alloc(lengthBytes);
    length.writeUInt32BE(text.length);
    return Buffer.concat([length, text, body]);
  },
  read(bytes: Buffer): Claim | null {
    const bodyAt = lengthBytes + bytes.readUInt32BE();
    const head = JSON.parse(bytes.toString('utf8', lengthBytes, bodyAt)) as Head;
    const state = stateOf(head, bytes.subarray(bodyAt));
    return state === null ? null : { fingerprint: head.fingerprint, state };
  },
};

function partsOf({ fingerprint, state }: Claim): readonly [Head, Buffer] {
  const none = Buffer.alloc(0);
  if (state.kind === 'held' || state.kind === 'left') return [{ fingerprint, state }, none];
  const { kind } = state;
  const until = state.kind === 'kept' ? { until: state.until } : {};
  const result = state.kind === 'kept' ? state.response : state.result;
  const head = { fingerprint, state: { kind }, ...until };
  if (result === 'too_large') return [{ ...head, response: result }, none];
  if (result instanceof Refusal) {
    const { code, details } = result;
    return [{ ...head, refusal: { code, details } }, none];
  }
  const { body, ...response } = result;
  return [{ ...head, response }, body];
}

function stateOf({ state, until = 0, response, refusal }: Head, body: Buffer): ClaimState | null {
  if (state.kind === 'held' || state.kind === 'left') return state;
  const whole = response === undefined || response === 'too_large' ? response : { ...response, body };
  if (state.kind === 'kept') return whole === undefined ? null : { kind: 'kept', response: whole, until };
  if (refusal !== undefined && refusal.code in refusals)
    return { kind: 'passed_on', result: new Refusal(refusal.code, refusal.details) };
  return whole === undefined || whole === 'too_large' ? null : { kind: 'passed_on', result: whole };
}
