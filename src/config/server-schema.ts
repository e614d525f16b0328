/** `server`: ports, sizes, the drain, and the waits of upstreams that state none. */
import { z } from 'zod';
import { defaultServer } from './defaults.ts';
import { count, port, seconds, secret, section } from './values.ts';
import { waitShape } from './wait-schema.ts';

export const server = section({
  host: z.string().min(1).default('0.0.0.0').describe('Address the data port listens on.'),
  port: port().default(defaultServer.port).describe('Data port. 0 = any free port.'),
  adminHost: z
    .string()
    .min(1)
    .optional()
    .describe('Address the admin port listens on. Default 127.0.0.1, in the image 0.0.0.0.'),
  adminPort: port()
    .default(defaultServer.adminPort)
    .describe('Admin port: probes, metrics, activity, live page. Never make it public.'),
  adminNames: z
    .array(
      z.string().refine((name) => /^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?$/i.test(name), {
        message: 'is not a host name',
        params: { fix: 'write the name alone, without scheme, port or wildcard' },
      }),
    )
    .default([])
    .describe('Names by which the admin port may be asked beside its addresses and localhost.'),
  adminToken: secret()
    .refine((text) => text.trim() === '' || /^[\x21-\x7e]{16,}$/.test(text), {
      message: 'is shorter than 16 characters, or has others than visible ASCII',
      params: { fix: 'use a random secret, for instance of: openssl rand -hex 32' },
    })
    .optional()
    .describe('Secret that commands at the admin port (open, pause, resume) must carry as a bearer token.'),
  publicHosts: z
    .array(z.string().regex(/^[a-z0-9.[\]:-]+$/i))
    .default([])
    .describe(
      'Names (host or host:port) under which Sluice itself is reached; no origin may be one of them.',
    ),
  maxBodyBytes: count().default(defaultServer.maxBodyBytes).describe('Largest request body.'),
  maxReplayBytes: count()
    .optional()
    .describe('Larger bodies are sent once and never again. Default maxBodyBytes.'),
  maxHeldBytes: count()
    .optional()
    .describe(
      'Heads and bodies of requests held by the process at most, then 503. Default 256 MiB, at least four bodies.',
    ),
  maxConnections: count()
    .max(1_000_000)
    .default(defaultServer.maxConnections)
    .describe(
      'Client connections open at once. A further one takes the place of the longest idle without a valid key; without such, its calls get 503.',
    ),
  maxCallsPerConnection: count()
    .max(1_000_000)
    .default(defaultServer.maxCallsPerConnection)
    .describe('Calls open at once on one client connection, then 503.'),
  maxOpenCalls: count()
    .max(1_000_000)
    .default(defaultServer.maxOpenCalls)
    .describe('Calls held and in flight at once in the process, then 503.'),
  maxEventLoopDelayMs: count()
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
  keepAliveSeconds: seconds()
    .default(75)
    .describe('Idle time of client connections; keep it above the load balancer’s.'),
  ...waitShape,
});
