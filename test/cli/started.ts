/** Commands of this project as processes of their own, as a person starts them; all of it gone at the end of the test, whatever happens. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';

const running = new Set<Started>();
const folders: string[] = [];

export type Started = ReturnType<typeof start>;

/** Starts it in a process group of its own. */
export function start(command: string, args: readonly string[]) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  let printed = '';
  const listeners = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
      for (const listener of listeners) listener();
    });
  const ended = once(child, 'close').then(
    ([code, signal]: (number | string | null)[]) => code ?? signal ?? null,
  );
  const started = {
    child,
    /** Both outputs so far. */
    printed: (): string => printed,
    /** Resolves with what was printed as soon as it contains the text. Rejects when the process ends before. */
    saying: (text: string) =>
      new Promise<string>((resolve, reject) => {
        const listen = (): void => {
          if (printed.includes(text)) resolve(printed);
        };
        listeners.add(listen);
        listen();
        ended.then(() => reject(new Error(`ended without saying "${text}":\n${printed}`)), reject);
      }),
    /** Exit code, or the signal's name, once every process that could still print is gone. */
    ended,
    /** Sends a signal to the process, or to all of its group, as a terminal does. */
    signal: (name: NodeJS.Signals, to: 'process' | 'group' = 'process') =>
      void process.kill((child.pid ?? NaN) * (to === 'group' ? -1 : 1), name),
  };
  running.add(started);
  void ended.then(() => running.delete(started));
  return started;
}

/** `sluice …`, the process that `npm run sluice -- …` becomes. */
export const sluice = (...args: readonly string[]): Started =>
  start(process.execPath, ['--max-semi-space-size=16', 'bin/sluice.mjs', ...args]);

/** Ends every process group of which something is left, and removes the files; for `afterEach`. */
export async function clean(): Promise<void> {
  for (const started of running) {
    started.signal('SIGKILL', 'group');
    await started.ended;
  }
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
}

export const { key, hash } = createKey();
/** A configuration on ports that the system chooses, without a wait for load balancers, unless `server` says otherwise. */
export const yamlOf = (server = '', more = ''): string =>
  `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainDelaySeconds: 0${server} }
privacy: { labelKey: "a label key for tests only" }
upstreams: { up: { origins: ["https://up.example"] } }
workspaces: { acme: { keys: ["${hash}"], requestsPerMinute: none } }
${more}`;

/** Path of a file with this text, in a folder of its own. */
export function fileOf(text: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-cli-'));
  folders.push(folder);
  writeFileSync(join(folder, 'sluice.yaml'), text);
  return join(folder, 'sluice.yaml');
}

/** `sluice serve` with this file, once it serves. */
export async function serve(yaml: string) {
  const path = fileOf(yaml);
  const process = sluice('serve', '--config', path);
  const text = await process.saying('"message":"serving"');
  const address = (name: string): string => `http://127.0.0.1:${found(new RegExp(`"${name}":(\\d+)`), text)}`;
  return { ...process, url: address('port'), adminUrl: address('adminPort'), path };
}

/** The one match of the expression's first group. */
export function found(expression: RegExp, text: string): string {
  const match = expression.exec(text)?.[1];
  if (match === undefined) throw new Error(`${String(expression)} is not in:\n${text}`);
  return match;
}
