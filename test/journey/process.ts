/**
 * `sluice serve` as a process of its own, for promises about signals and files.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

export type ServedProcess = Awaited<ReturnType<typeof serve>>;

/** @throws Error when the process ends before it serves. */
export async function serve(yaml: string) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-test-'));
  const path = join(folder, 'sluice.yaml');
  writeFileSync(path, yaml);
  const child = spawn(process.execPath, ['src/main.ts', 'serve', '--config', path], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const exited = once(child, 'exit').then(([code]) => (typeof code === 'number' ? code : null));
  const lines: string[] = [];
  const listeners = new Set<(line: string) => void>();
  for (const input of [child.stdout, child.stderr]) {
    createInterface({ input }).on('line', (line) => {
      lines.push(line);
      for (const listener of listeners) listener(line);
    });
  }
  const saying = (text: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const listener = (line: string): void => {
        if (!line.includes(text)) return;
        listeners.delete(listener);
        resolve(line);
      };
      listeners.add(listener);
      void exited.then(() => reject(new Error(`the process ended:\n${lines.join('\n')}`)));
    });
  const served: unknown = JSON.parse(await saying('"serving"'));
  const { port, adminPort } = served as { port: number; adminPort: number };
  return {
    url: `http://127.0.0.1:${port}`,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    /** Lines of both outputs so far. */
    lines: lines as readonly string[],
    /** Resolves with the first line, from now on, that contains the text. */
    saying(text: string) {
      const said = saying(text);
      said.catch(() => {});
      return said;
    },
    /** Writes another configuration file in place of the first. */
    write: (text: string) => writeFileSync(path, text),
    /** Writes the `.env` beside the configuration file. */
    writeEnv: (text: string) => writeFileSync(join(folder, '.env'), text),
    signal: (name: 'SIGHUP' | 'SIGTERM' | 'SIGKILL') => void child.kill(name),
    /** Resolves with the exit code. */
    exited,
    async close() {
      child.kill('SIGKILL');
      await exited;
      rmSync(folder, { recursive: true });
    },
  };
}
