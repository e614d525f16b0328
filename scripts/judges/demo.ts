/** The gateway that is judged: `sluice demo --serve` as a process of its own. */
import { execPath } from 'node:process';
import { start, until } from '../processes.ts';

const root = new URL('../../', import.meta.url).pathname;

export interface Demo {
  readonly data: string;
  readonly admin: string;
  readonly key: string;
  /** Absolute URLs that its upstreams answer. */
  readonly targets: readonly string[];
  stop(): Promise<void>;
}

/** @throws Error when it does not say within a minute where it listens. */
export async function startDemo(): Promise<Demo> {
  const { said, stop } = start(execPath, ['src/main.ts', 'demo', '--serve'], { cwd: root });
  await until('the demonstration serves', 60_000, () => Promise.resolve(said().includes('Ctrl-C')), said);
  const text = said();
  const word = (pattern: RegExp): string => pattern.exec(text)?.[1] ?? '';
  const targets = [...text.matchAll(/target=([^"\s]+)/g)].map(([, target = '']) =>
    decodeURIComponent(target),
  );
  return {
    data: word(/data port +(\S+)/),
    admin: word(/live page +(\S+?)\/\s/),
    key: word(/API key +(\S+)/),
    targets,
    stop: async () => void (await stop()),
  };
}
