/** The gateway that is judged: `sluice demo --serve` as a process of its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { execPath } from 'node:process';

const root = new URL('../../', import.meta.url).pathname;
const startMs = 60_000;

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
  const child = spawn(execPath, ['src/main.ts', 'demo', '--serve'], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let said = '';
  const stop = async (): Promise<void> => {
    if (child.exitCode !== null) return;
    const over = once(child, 'exit');
    child.kill('SIGTERM');
    await over;
  };
  const waited = setTimeout(() => child.kill('SIGKILL'), startMs);
  for await (const chunk of child.stdout) {
    said += String(chunk);
    if (said.includes('Ctrl-C')) break;
  }
  clearTimeout(waited);
  const word = (pattern: RegExp): string => pattern.exec(said)?.[1] ?? '';
  const targets = [...said.matchAll(/target=([^"\s]+)/g)].map(([, target = '']) =>
    decodeURIComponent(target),
  );
  const demo = {
    data: word(/data port +(\S+)/),
    admin: word(/live page +(\S+?)\/\s/),
    key: word(/API key +(\S+)/),
    targets,
    stop,
  };
  if (demo.data === '' || demo.admin === '') throw new Error('the demonstration did not start');
  return demo;
}
