/**
 * Classes of failures of Redis, each with advice for the operator. Owns: the class of a failed connection or command, and the
 * advice. Does not own: what a replica does meanwhile. Keeps: a closed set of words; no host, user or text of Redis.
 */

export interface RedisTrouble {
  /** Shown in logs and readiness: a published name does not change. */
  readonly reason: TroubleReason;
  /** What the failure means, and what the operator checks or corrects. */
  readonly advice: string;
}

/** Redis is there but must not be used: wrong version, or it evicts keys. The message is for the operator. */
export class RedisUnusable extends Error {
  readonly trouble: RedisTrouble;

  constructor(reason: 'version' | 'evicts', advice: string) {
    super(advice);
    this.name = 'RedisUnusable';
    this.trouble = { reason, advice };
  }
}

const adviceOf = {
  password:
    'Redis or a Sentinel refuses the user or the password of redis.url, or wants one where none is given: correct the URL, redis.sentinelPassword, or the users of Redis.',
  permission:
    'The user of redis.url may not run a command that Sluice needs: give it the rights that docs/operate/redis.md lists.',
  name: 'The host name of redis.url cannot be resolved: correct it, or name resolution on this machine.',
  refused:
    'Nothing takes connections at the address of redis.url: start Redis, or correct host and port of the URL.',
  certificate:
    'The certificate of Redis is not trusted, has expired, or is for another name: name its authority with redis.tls.caFile, or correct the host of redis.url.',
  tls: 'Redis does not answer with TLS at the port of redis.url: write redis:// instead of rediss://, or name the TLS port.',
  closed:
    'Redis ends every connection before it can be used: it may want TLS (rediss:// in redis.url), or take no more clients (maxclients).',
  timeout:
    'Redis does not answer in time: is the network to it up, is it overloaded, does a firewall drop the connection? Where it has no TLS, write redis:// instead of rediss://.',
  read_only:
    'Redis is a read-only replica and takes no writes: redis.url must lead to the primary, or to Sentinels that know it.',
  replicas:
    'Redis has fewer replicas than its min-replicas-to-write demands and takes no writes: bring them back, or lower that number.',
  memory:
    'Redis has reached maxmemory and takes no writes: raise maxmemory, or remove what else is stored there.',
  persistence: 'Redis cannot save its data and takes no writes (MISCONF): look at its disk and its log.',
  loading: 'Redis is still loading its data after a start.',
  sentinel:
    'No Sentinel can be asked, or none knows the primary: correct redis.url, which names it, or look at the Sentinels.',
  cluster: 'Part of the Redis Cluster does not serve: look at CLUSTER INFO on its nodes.',
  database: 'Redis has no database of the number in redis.url: correct it, or leave it out.',
  unknown: 'Redis does not serve: look at its log and at the network to it.',
} as const;

/** `version`, `evicts`: Redis is there but must not be used. */
export type TroubleReason = keyof typeof adviceOf | 'version' | 'evicts';

export const troubleOf = (reason: keyof typeof adviceOf): RedisTrouble => ({
  reason,
  advice: adviceOf[reason],
});

/** How classes show in the message and the error code of Redis, Node, OpenSSL or the driver. The first that matches counts. */
const forms: readonly (readonly [RegExp, keyof typeof adviceOf])[] = [
  [/^(WRONGPASS|NOAUTH)|^ERR (invalid password|AUTH|Client sent AUTH)/i, 'password'],
  // To the user, or inside of a script of the user's, before Redis 7.2 and since.
  [/^(?:NOPERM|ERR (?:The user executing the script can't|ACL failure in script))/, 'permission'],
  [/READONLY|^MASTERDOWN/, 'read_only'],
  [/^NOREPLICAS/, 'replicas'],
  [/^OOM|maxmemory/, 'memory'],
  [/MISCONF/, 'persistence'],
  [/^LOADING/, 'loading'],
  [/^(CLUSTERDOWN|TRYAGAIN)/, 'cluster'],
  [/DB index is out of range/, 'database'],
  [/ENOTFOUND|EAI_/, 'name'],
  [/ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|EADDRNOTAVAIL/, 'refused'],
  [/CERT_|_CERT|UNABLE_TO_|SELF_SIGNED|HOSTNAME_MISMATCH|certificate/, 'certificate'],
  [/EPROTO|ERR_SSL_|ERR_TLS_/, 'tls'],
  [/max number of clients|ECONNRESET|EPIPE/, 'closed'],
  [/All sentinels are unreachable/, 'sentinel'],
  [/timed? ?out|ETIMEDOUT/i, 'timeout'],
];

/**
 * The class of a failure. `null` when the failure is not recognised, or only says that there is no connection: an earlier
 * failure has then said why.
 */
export function redisTrouble(failure: unknown): RedisTrouble | null {
  if (failure instanceof RedisUnusable) return failure.trouble;
  if (typeof failure !== 'object' || failure === null) return null;
  const inner = 'lastNodeError' in failure ? redisTrouble(failure.lastNodeError) : null;
  if (inner !== null) return inner;
  // The driver puts what the last of the Sentinels said into its own message.
  const textIn = (member: 'message' | 'code'): string => String(Reflect.get(failure, member) ?? '');
  const message = textIn('message').replace(/^(All sentinels are unreachable).* Last error: (.*)$/s, '$2 $1');
  const text = `${message} ${textIn('code')}`;
  const found = forms.find(([form]) => form.test(text));
  if (found !== undefined) return troubleOf(found[1]);
  return 'lastNodeError' in failure ? troubleOf('cluster') : null;
}

/** Scripts use `ZRANGE … LIMIT`, `SET … PX` and expiries that came with it. */
const oldest = [6, 2] as const;

/** @throws RedisUnusable where the server that says this of itself (`INFO`) cannot be used, with what to do */
export function requireUsable(info: string): void {
  const fact = (name: string): string | undefined => new RegExp(`^${name}:(.*?)\\r?$`, 'm').exec(info)?.[1];
  const version = fact('redis_version') ?? '';
  const [major = 0, minor = 0] = version.split('.').map(Number);
  if (!(major > oldest[0] || (major === oldest[0] && minor >= oldest[1]))) {
    const named = version === '' ? 'of unknown version' : version;
    throw new RedisUnusable(
      'version',
      `Redis ${named} is too old: Sluice needs ${oldest.join('.')} or later.`,
    );
  }
  const policy = fact('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction')
    throw new RedisUnusable(
      'evicts',
      `Redis evicts keys (maxmemory-policy ${policy}), also leases in use: set maxmemory-policy to noeviction.`,
    );
}
