/** Commands of this project as processes of their own, as a person starts them; gone at the end of the test, whatever happens. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

export interface Started {
  readonly child: ChildProcess;
  /** Both outputs so far. */
  printed(): string;
  /** Resolves with what was printed as soon as it contains the text. Rejects when the process ends before. */
  saying(text: string): Promise<string>;
  /** Exit code, or the signal's name, once every process that could still print is gone. */
  readonly ended: Promise<number | string | null>;
  /** Sends a signal to the process, or to all of its group, as a terminal does. */
  signal(name: NodeJS.Signals, to?: 'process' | 'group'): void;
}

const running = new Set<Started>();

/** Starts it in a process group of its own. */
export function start(command: string, args: readonly string[]): Started {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  let printed = '';
  const listeners = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
      for (const listener of listeners) listener();
    });
  }
  const ended = once(child, 'close').then(
    ([code, signal]: (number | string | null)[]) => code ?? signal ?? null,
  );
  const started: Started = {
    child,
    printed: () => printed,
    saying: (text) =>
      new Promise((resolve, reject) => {
        const listen = (): void => {
          if (printed.includes(text)) resolve(printed);
        };
        listeners.add(listen);
        listen();
        ended.then(() => reject(new Error(`ended without saying "${text}":\n${printed}`)), reject);
      }),
    ended,
    signal: (name, to = 'process') => void process.kill((child.pid ?? NaN) * (to === 'group' ? -1 : 1), name),
  };
  running.add(started);
  void ended.then(() => running.delete(started));
  return started;
}

/** Ends every process group of which something is left; for `afterEach`. */
export async function endAll(): Promise<void> {
  for (const started of running) {
    started.signal('SIGKILL', 'group');
    await started.ended;
  }
}

/** The one match of the expression's first group. */
export function found(expression: RegExp, text: string): string {
  const match = expression.exec(text)?.[1];
  if (match === undefined) throw new Error(`${String(expression)} is not in:\n${text}`);
  return match;
}
