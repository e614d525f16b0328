/** `server`: ports, sizes, the drain, and the waits of upstreams that state none. */
import { z } from 'zod';
import { defaultWaits } from './defaults.ts';
import * as is from './values.ts';

/** How long and how many calls wait: also an upstream and its limits may state it, the last one before the others. */
const waits = is.section(
  {
    maxQueued: z.exactOptional(is.count),
    maxWaitSeconds: z.exactOptional(is.seconds),
    maxWaitCeilingSeconds: z.exactOptional(is.seconds),
    reserveSeconds: z.exactOptional(is.seconds),
    maxReserved: z.exactOptional(z.int().min(0).max(100_000)),
  },
  {
    maxQueued: `Calls waiting per workspace and upstream. Default ${defaultWaits.maxQueued}.`,
    maxWaitSeconds: `How long a call waits unless it asks otherwise. Default ${defaultWaits.maxWaitSeconds}.`,
    maxWaitCeilingSeconds: `Longest wait that a call may ask for with "Prefer: wait=<seconds>". Default ${defaultWaits.maxWaitCeilingSeconds}.`,
    reserveSeconds: `How long after the told time the position of a refused call with "Prefer: reserve" is kept. Default ${defaultWaits.reserveSeconds}.`,
    maxReserved: `Refused calls per workspace and upstream that keep their positions. 0 = none does. Default ${defaultWaits.maxReserved}.`,
  },
);

export const waitShape = waits.shape;
export type Waits = z.output<typeof waits>;

/** Keys of `server` whose new value takes effect at once; those of `redis`, `privacy` and all others of `server` wait for the next start. */
export const keysAtOnce = ['publicHosts', ...waits.keyof().options];

/** The waits of sections, those of later ones before those of earlier ones. */
export const waitsOf = (...sections: readonly Waits[]) => ({
  ...defaultWaits,
  ...(Object.assign({}, ...sections.map((section) => is.pick(section, waits.keyof().options))) as Waits),
});

/** Refuses a `maxWaitSeconds` above the maximum wait of its section, or of those before it: it would never be reached. */
export function checkWait(
  { maxWaitSeconds = 0, maxWaitCeilingSeconds }: Waits,
  inherited: number,
  refuse: is.Refuse,
): void {
  const ceiling = maxWaitCeilingSeconds ?? inherited;
  const fix = `lower it, or raise maxWaitCeilingSeconds to at least ${maxWaitSeconds}`;
  if (maxWaitSeconds > ceiling) refuse(`is above maxWaitCeilingSeconds (${ceiling})`, fix, 'maxWaitSeconds');
}

/** A TCP port; 0 lets the system choose. */
const port = z.int().min(0).max(65_535);
const hostName = is.formed(
  /^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$/i,
  'is not a host name',
  'write the name alone, without scheme, port or wildcard',
);
const hostAndPort = z.string().regex(/^[a-z0-9.[\]:-]+$/i);
const atMostAMillion = is.count.max(1_000_000);

/** The section as it is written. Its origins are judged by `publicHosts`, its upstreams take its waits: also at a reload. */
export const server = is
  .section(
    {
      host: z.string().min(1).default('0.0.0.0'),
      port: port.default(8080),
      adminHost: z.string().min(1).optional(),
      adminPort: port.default(9090),
      adminNames: z.array(hostName.toLowerCase()).default([]),
      adminToken: is.orNull(
        is.secretLike(
          /^[\x21-\x7e]{16,}$/,
          'is shorter than 16 characters, or has others than visible ASCII',
        ),
      ),
      publicHosts: z.array(hostAndPort.toLowerCase()).default([]),
      maxBodyBytes: is.count.default(10_485_760),
      maxReplayBytes: is.count.optional(),
      maxHeldBytes: is.count.optional(),
      maxConnections: atMostAMillion.default(50_000),
      maxCallsPerConnection: atMostAMillion.default(100),
      maxOpenCalls: atMostAMillion.default(50_000),
      // Below the time that a command to Redis may take (250 ms): a slow process must not look like a Redis that is unavailable.
      maxEventLoopDelayMs: is.count.min(10).max(60_000).default(250),
      maxMemoryRatio: z.number().min(0.1).max(1).default(0.85),
      drainSeconds: z.number().min(0).max(86_400).default(25),
      drainDelaySeconds: z.number().min(0).max(3600).default(5),
      keepAliveSeconds: is.seconds.default(75),
      ...waitShape,
    },
    {
      host: 'Address the data port listens on.',
      port: 'Data port. 0 = any free port.',
      adminHost: 'Address the admin port listens on. Default 127.0.0.1, in the image 0.0.0.0.',
      adminPort: 'Admin port: probes, metrics, activity, live page. Never make it public.',
      adminNames: 'Names by which the admin port may be asked beside its addresses and localhost.',
      adminToken:
        'Secret that commands at the admin port (open, pause, resume) must carry as a bearer token.',
      publicHosts:
        'Names (host or host:port) under which Sluice itself is reached; no origin may be one of them.',
      maxBodyBytes: 'Largest request body.',
      maxReplayBytes: 'Larger bodies are sent once and never again. Default maxBodyBytes.',
      maxHeldBytes:
        'Heads and bodies of requests held by the process at most, then 503. Default 256 MiB, at least four bodies.',
      maxConnections:
        'Client connections open at once. A further one takes the place of the longest idle without a valid key; without such, its calls get 503.',
      maxCallsPerConnection: 'Calls open at once on one client connection, then 503.',
      maxOpenCalls: 'Calls held and in flight at once in the process, then 503.',
      maxEventLoopDelayMs:
        'Delay of the event loop that stands for half a second; above it new calls get 503.',
      maxMemoryRatio: 'Used share of the heap or of the container’s memory; above it new calls get 503.',
      drainSeconds: 'Time for waiting and running calls after SIGTERM.',
      drainDelaySeconds: 'Part of it in which new calls are still accepted, while load balancers notice.',
      keepAliveSeconds: 'Idle time of client connections; keep it above the load balancer’s.',
    },
  )
  .superRefine(
    is.rule((server, refuse) => {
      const { port, adminPort, maxBodyBytes: body, maxReplayBytes = body, maxHeldBytes = body } = server;
      if (port === adminPort && port !== 0)
        refuse('is the data port', 'give the admin port its own number', 'adminPort');
      if (maxReplayBytes > body)
        refuse('is above maxBodyBytes', 'lower it, or leave it out', 'maxReplayBytes');
      if (maxHeldBytes < body)
        refuse('is below maxBodyBytes', 'raise it: one body of the largest size must fit', 'maxHeldBytes');
      checkWait(server, defaultWaits.maxWaitCeilingSeconds, refuse);
    }),
  );

export type ServerInput = z.output<typeof server>;

const mebibyte = 1_048_576;

/** The section as the server is run with it. `adminHost`: where the file has none. */
export function settleServer(written: ServerInput, adminHost: string) {
  const { maxBodyBytes, drainSeconds, drainDelaySeconds } = written;
  return {
    ...written,
    adminHost: written.adminHost ?? adminHost,
    maxReplayBytes: written.maxReplayBytes ?? maxBodyBytes,
    maxHeldBytes: written.maxHeldBytes ?? Math.max(256 * mebibyte, 4 * maxBodyBytes),
    drainDelaySeconds: Math.min(drainDelaySeconds, drainSeconds),
  };
}
