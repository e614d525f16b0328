/** `sluice open|pause|resume`: asks a running Sluice through its admin port. Owns the words for the terminal. */
import type { CliIo } from './io.ts';

export interface ControlCommand {
  readonly verb: 'open' | 'pause' | 'resume';
  readonly upstream: string;
  /** How long a pause lasts; `null` = as long as the admin port does by default. */
  readonly seconds: number | null;
  /** `http://host:port` of any replica's admin port. */
  readonly admin: string;
}

/** Exit code 0, or 1 when it was not done. */
export async function runControl(
  { verb, upstream, seconds, admin }: ControlCommand,
  io: CliIo,
): Promise<number> {
  const query = seconds === null ? '' : `?seconds=${seconds}`;
  const path = `/upstreams/${encodeURIComponent(upstream)}/${verb}${query}`;
  let response: Response;
  try {
    const token = io.env['SLUICE_ADMIN_TOKEN'] ?? '';
    const headers = {
      'Sluice-Admin': 'yes',
      ...(token === '' ? {} : { authorization: `Bearer ${token}` }),
    };
    response = await fetch(new URL(path, admin), { method: 'POST', headers });
  } catch {
    io.err(`No Sluice answers at ${admin}: name its admin port with --admin http://HOST:PORT.`);
    return 1;
  }
  const text = await response.text();
  if (response.ok) {
    io.out(`${upstream}: ${text.includes('not_paused') ? 'was not paused' : done[verb]}`);
    return 0;
  }
  const said = detailOf(text) ?? `The response has status ${response.status}.`;
  io.err(`${said}\nAsked was ${admin}: --admin http://HOST:PORT names the admin port of a Sluice.`);
  return 1;
}

const done = {
  open: 'what its responses had closed is open again, on all replicas',
  pause: 'paused: nobody is sent, on all replicas within a second',
  resume: 'the pause is over, on all replicas within a second',
} as const;

function detailOf(text: string): string | null {
  try {
    const { detail } = JSON.parse(text) as { readonly detail?: unknown };
    return typeof detail === 'string' ? detail : null;
  } catch {
    return null;
  }
}
