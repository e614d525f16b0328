/** `server`: ports, sizes, the drain, and the waits of upstreams that state none. */
import { z } from 'zod';
import { defaultServer } from './defaults.ts';
import { count, port, seconds, section } from './values.ts';
import { waitShape } from './wait-schema.ts';

export const server = section({
  host: z.string().min(1).default('0.0.0.0').describe('Address the data port listens on.'),
  port: port().default(defaultServer.port).describe('Data port. 0 = any free port.'),
  adminHost: z.string().min(1).default('0.0.0.0').describe('Address the admin port listens on.'),
  adminPort: port()
    .default(defaultServer.adminPort)
    .describe('Admin port: probes, metrics, activity, live page. Never make it public.'),
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
    .describe('Request bodies held by the process at most, then 503. Default 256 MiB, at least four bodies.'),
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
