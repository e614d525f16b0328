/** `sluice open|pause|resume`: asks a running Sluice through its admin port. Owns the words for the terminal. */
import { askAdmin } from './admin-port.ts';
import type { CliIo } from './io.ts';

const done = {
  open: 'what its responses had closed is open again, on all replicas',
  pause: 'paused: nobody is sent, on all replicas within a second',
  resume: 'the pause is over, on all replicas within a second',
} as const;

/**
 * Exit code 0, or 1 when it was not done.
 * @param options `seconds` of a pause; `admin`: `http://host:port` of any replica's admin port
 */
export async function runControl(
  verb: keyof typeof done,
  options: { readonly upstream: string; readonly seconds?: number; readonly admin: string },
  io: CliIo,
): Promise<number> {
  const { upstream, seconds, admin } = options;
  const query = seconds === undefined ? '' : `?seconds=${seconds}`;
  const path = `/upstreams/${encodeURIComponent(upstream)}/${verb}${query}`;
  const token = io.env['SLUICE_ADMIN_TOKEN'] ?? '';
  const headers = { 'Sluice-Admin': 'yes', ...(token === '' ? {} : { authorization: `Bearer ${token}` }) };
  const response = await askAdmin(admin, { path, init: { method: 'POST', headers } }, io);
  if (response === null) return 1;
  const isChanged = !(await response.text()).includes('not_paused');
  io.out(`${upstream}: ${isChanged ? done[verb] : 'was not paused'}`);
  return 0;
}
