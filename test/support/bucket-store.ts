/** One bucket in a server, an event at a time: what its reply tells of the event and of the bucket, as one object. */
import type { BucketEvent, EventKind, ReplyOf } from '../../src/limiter/policy/bucket-events.ts';
import { applyCall, type Asking } from '../../src/limiter/redis/protocol/event-codec.ts';
import { readBatch, type BucketReply } from '../../src/limiter/redis/protocol/reply-codec.ts';
import type { LoadedScripts } from './loaded-scripts.ts';

export type EventOf<K extends EventKind> = Extract<BucketEvent, { kind: K }>;

/** Applies one event; rejects as the server does. */
export async function applied<K extends EventKind>(
  scripts: LoadedScripts,
  asking: Asking,
  event: EventOf<K>,
): Promise<BucketReply & ReplyOf[K]> {
  const { bucket, replies } = readBatch(await scripts.run(applyCall(asking, [event])), [event]);
  // The codec reads the reply of a kind where it wrote an event of this kind.
  return { ...bucket, ...(replies[0] as ReplyOf[K]) };
}
