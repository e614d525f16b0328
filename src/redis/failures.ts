/** What a failed command says: which kind of failure it is, and whether sending the command again may help. */
import type { RedisErrorKind } from '../telemetry/events.ts';
import { MalformedReply } from './malformed-reply.ts';

/** Replies that say "not now": the same command may succeed in a moment. */
const transient =
  /^(READONLY|LOADING|BUSY|NOREPLICAS|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|OOM|MOVED|ASK|NOAUTH|WRONGPASS|NOPERM|MISCONF|UNBLOCKED|ERR Too many Cluster)/;

export function kindOf(failure: unknown): RedisErrorKind {
  if (isErrorReply(failure) || failure instanceof MalformedReply) return 'reply';
  const message = failure instanceof Error ? failure.message : '';
  if (/timed? ?out/i.test(message)) return 'timeout';
  if (/writeable|closed|ECONN|EPIPE|ENOTFOUND|Socket|retries|Cluster|AbortError|aborted/i.test(message)) {
    return 'connection';
  }
  return 'other';
}

/** Redis itself answered with an error. */
const isErrorReply = (failure: unknown): failure is Error =>
  failure instanceof Error && failure.name === 'ReplyError';

/** True when the command would fail in the same way if it were sent again. */
export const isPermanent = (failure: unknown): boolean =>
  failure instanceof MalformedReply || (isErrorReply(failure) && !transient.test(failure.message));
