/** Simulated providers as processes. */
import type { LogEntry } from '../../simulators/log.ts';
import { firstLine, inTurn, parsed, start } from './processes.ts';

export interface Simulator {
  readonly url: string;
  log(): Promise<readonly LogEntry[]>;
  /** The log begins anew; buckets stay as they are. */
  forget(): Promise<void>;
  /** Changes a part of its options, or does what its control knows beside them (`drain`, `close`). */
  configure(part: Readonly<Record<string, unknown>>): Promise<void>;
  stop(): void;
}

export async function startSimulator(
  kind: 'language-model' | 'commerce',
  config: Readonly<Record<string, unknown>>,
): Promise<Simulator> {
  const { started, url } = await inTurn(async () => {
    const begun = start(process.execPath, ['simulators/main.ts', kind, '--config', JSON.stringify(config)]);
    return { started: begun, url: await firstLine(begun, (line) => parsed(line)['url'] as string | null) };
  });
  let since = 0;
  const log = async () => (await (await fetch(`${url}/__sim/log?since=${since}`)).json()) as LogEntry[];
  return {
    url,
    log,
    async forget() {
      since = Math.max(since, ...(await log()).map(({ seq }) => seq));
    },
    async configure(part) {
      const response = await fetch(`${url}/__sim/config`, { method: 'POST', body: JSON.stringify(part) });
      if (!response.ok) throw new Error(`the simulator refused: ${await response.text()}`);
    },
    stop: () => started.signal('SIGKILL'),
  };
}
