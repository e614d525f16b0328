/** `sluice open|pause|resume`: asks a running Sluice through its admin port. Owns the words for the terminal. */
import { askAdmin, refusedByAdmin } from './admin-port.ts';
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
  const token = io.env['SLUICE_ADMIN_TOKEN'] ?? '';
  const headers = { 'Sluice-Admin': 'yes', ...(token === '' ? {} : { authorization: `Bearer ${token}` }) };
  const response = await askAdmin(admin, { path, init: { method: 'POST', headers } }, io);
  if (response === null) return 1;
  const text = await response.text();
  if (response.ok) {
    io.out(`${upstream}: ${text.includes('not_paused') ? 'was not paused' : done[verb]}`);
    return 0;
  }
  const said = detailOf(text) ?? `The response has status ${response.status}.`;
  io.err(refusedByAdmin(admin, said));
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
