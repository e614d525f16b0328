/** `server`: ports, sizes, the drain, and the waits of upstreams that state none. */
import { z } from 'zod';
import { defaultServer, defaultWaits } from './defaults.ts';
import type { Fault } from './problem.ts';
import {
  atRestart,
  count,
  formed,
  orNull,
  port,
  refuse,
  seconds,
  secretLike,
  section,
  type Frozen,
} from './values.ts';

/** How long and how many calls wait: also an upstream and its limits may state it, the last one before the others. */
export const waitShape = {
  maxQueued: z
    .exactOptional(count)
    .describe(`Calls waiting per workspace and upstream. Default ${defaultWaits.maxQueued}.`),
  maxWaitSeconds: z
    .exactOptional(seconds)
    .describe(`How long a call waits unless it asks otherwise. Default ${defaultWaits.maxWaitSeconds}.`),
  maxWaitCeilingSeconds: z
    .exactOptional(seconds)
    .describe(
      `Longest wait that a call may ask for with "Prefer: wait=<seconds>". Default ${defaultWaits.maxWaitCeilingSeconds}.`,
    ),
  reserveSeconds: z
    .exactOptional(seconds)
    .describe(
      `How long after the told time the position of a refused call with "Prefer: reserve" is kept. Default ${defaultWaits.reserveSeconds}.`,
    ),
  maxReserved: z
    .exactOptional(z.int().min(0).max(100_000))
    .describe(
      `Refused calls per workspace and upstream that keep their positions. 0 = none does. Default ${defaultWaits.maxReserved}.`,
    ),
};

export const waitKeys = Object.keys(waitShape) as readonly (keyof typeof waitShape)[];

/** Those of a section. */
export type Waits = { readonly [Key in keyof typeof waitShape]?: number };

/** What is wrong with `maxWaitSeconds` of a section: a default wait above the longest wait would never be reached. */
export function waitFault({ maxWaitSeconds, maxWaitCeilingSeconds }: Waits, inherited: number): Fault | null {
  const ceiling = maxWaitCeilingSeconds ?? inherited;
  if (maxWaitSeconds === undefined || maxWaitSeconds <= ceiling) return null;
  return {
    reason: `is above maxWaitCeilingSeconds (${ceiling})`,
    fix: `lower it, or raise maxWaitCeilingSeconds to at least ${maxWaitSeconds}`,
  };
}

/** The section as it is written. */
export const server = section({
  ...atRestart({
    host: z.string().min(1).default('0.0.0.0').describe('Address the data port listens on.'),
    port: port.default(defaultServer.port).describe('Data port. 0 = any free port.'),
    adminHost: z
      .string()
      .min(1)
      .optional()
      .describe('Address the admin port listens on. Default 127.0.0.1, in the image 0.0.0.0.'),
    adminPort: port
      .default(defaultServer.adminPort)
      .describe('Admin port: probes, metrics, activity, live page. Never make it public.'),
    adminNames: z
      .array(
        formed(
          /^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$/i,
          'is not a host name',
          'write the name alone, without scheme, port or wildcard',
        ).toLowerCase(),
      )
      .default([])
      .describe('Names by which the admin port may be asked beside its addresses and localhost.'),
    adminToken: orNull(
      secretLike(/^[\x21-\x7e]{16,}$/, 'is shorter than 16 characters, or has others than visible ASCII'),
    ).describe('Secret that commands at the admin port (open, pause, resume) must carry as a bearer token.'),
  }),
  publicHosts: z
    .array(
      z
        .string()
        .regex(/^[a-z0-9.[\]:-]+$/i)
        .toLowerCase(),
    )
    .default([])
    .describe(
      'Names (host or host:port) under which Sluice itself is reached; no origin may be one of them.',
    ),
  ...atRestart({
    maxBodyBytes: count.default(defaultServer.maxBodyBytes).describe('Largest request body.'),
    maxReplayBytes: count
      .optional()
      .describe('Larger bodies are sent once and never again. Default maxBodyBytes.'),
    maxHeldBytes: count
      .optional()
      .describe(
        'Heads and bodies of requests held by the process at most, then 503. Default 256 MiB, at least four bodies.',
      ),
    maxConnections: count
      .max(1_000_000)
      .default(defaultServer.maxConnections)
      .describe(
        'Client connections open at once. A further one takes the place of the longest idle without a valid key; without such, its calls get 503.',
      ),
    maxCallsPerConnection: count
      .max(1_000_000)
      .default(defaultServer.maxCallsPerConnection)
      .describe('Calls open at once on one client connection, then 503.'),
    maxOpenCalls: count
      .max(1_000_000)
      .default(defaultServer.maxOpenCalls)
      .describe('Calls held and in flight at once in the process, then 503.'),
    maxEventLoopDelayMs: count
      .min(10)
      .max(60_000)
      .default(defaultServer.maxEventLoopDelayMs)
      .describe(
        'Delay of the event loop that stands for half a second; above it a growing share of new calls gets 503.',
      ),
    maxMemoryRatio: z
      .number()
      .min(0.1)
      .max(1)
      .default(defaultServer.maxMemoryRatio)
      .describe(
        'Used share of the heap or of the container’s memory; above it a growing share of new calls gets 503.',
      ),
    drainSeconds: z
      .number()
      .min(0)
      .max(86_400)
      .default(25)
      .describe('Time for waiting and running calls after SIGTERM.'),
    drainDelaySeconds: z
      .number()
      .min(0)
      .max(3600)
      .default(5)
      .describe('Part of it in which new calls are still accepted, while load balancers notice.'),
    keepAliveSeconds: seconds
      .default(75)
      .describe('Idle time of client connections; keep it above the load balancer’s.'),
  }),
  ...waitShape,
}).superRefine((server, context) => {
  const { port, adminPort, maxBodyBytes, maxReplayBytes, maxHeldBytes } = server;
  const at = (key: string, reason: string, fix: string): void => refuse(context, { reason, fix }, [key]);
  if (port === adminPort && port !== 0)
    at('adminPort', 'is the data port', 'give the admin port its own number');
  if (maxReplayBytes !== undefined && maxReplayBytes > maxBodyBytes)
    at('maxReplayBytes', 'is above maxBodyBytes', 'lower it, or leave it out');
  if (maxHeldBytes !== undefined && maxHeldBytes < maxBodyBytes)
    at('maxHeldBytes', 'is below maxBodyBytes', 'raise it: one body of the largest size must fit');
  const fault = waitFault(server, defaultWaits.maxWaitCeilingSeconds);
  if (fault !== null) refuse(context, fault, ['maxWaitSeconds']);
});

export type ServerInput = z.output<typeof server>;

/** The section as the server is run with it. `adminHost`: where the file has none. */
export interface ServerSettings extends Frozen<ReturnType<typeof settleServer>> {}

const mebibyte = 1_048_576;

export function settleServer(
  {
    maxQueued: _q,
    maxWaitSeconds: _w,
    maxWaitCeilingSeconds: _c,
    reserveSeconds: _s,
    maxReserved: _r,
    ...server
  }: ServerInput,
  adminHost: string,
) {
  const { maxBodyBytes } = server;
  return {
    ...server,
    adminHost: server.adminHost ?? adminHost,
    maxReplayBytes: server.maxReplayBytes ?? maxBodyBytes,
    maxHeldBytes: server.maxHeldBytes ?? Math.max(256 * mebibyte, 4 * maxBodyBytes),
    drainDelaySeconds: Math.min(server.drainDelaySeconds, server.drainSeconds),
  };
}
