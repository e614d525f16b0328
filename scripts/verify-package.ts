/**
 * `npm run verify:package`: packs the project, installs the package into an empty folder without development dependencies, and uses it
 * as its user would: a key is made, the configuration checked, one call made through `serve`, a description learned, the demonstration
 * started, and SIGTERM ends what serves. Needs `npm run build`.
 */
import { execFile } from 'node:child_process';
import { lstat, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { serve } from './fleet/http.ts';
import { endAll, firstLine, newFolder, parsed, root, start } from './fleet/processes.ts';
import { createReport } from './report.ts';

const run = promisify(execFile);
const folder = await newFolder();
const report = createReport('package');
const upstream = await serve((_, response) => response.end('made'));

async function install(): Promise<string> {
  const pack = ['pack', '--ignore-scripts', '--json', '--pack-destination', folder];
  const { stdout } = await run('npm', pack, { cwd: root });
  const [packed] = JSON.parse(stdout) as readonly { filename: string; size: number; entryCount: number }[];
  if (packed === undefined) throw new Error('npm pack made nothing');
  report.figure(`package: ${packed.entryCount} files, ${(packed.size / 1e6).toFixed(2)} MB packed`);
  await writeFile(join(folder, 'package.json'), '{"private":true}');
  const quiet = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
  await run('npm', ['install', ...quiet, join(folder, packed.filename)], { cwd: folder });
  const { packages, megabytes } = await installed(join(folder, 'node_modules'));
  const size = `${packages} packages, ${megabytes.toFixed(0)} MB on disk`;
  report.figure(`installed: ${size}`);
  report.check('a user installs 200 packages and 250 MB at most', packages <= 200 && megabytes <= 250, size);
  return join(folder, 'node_modules/sluice/dist/main.js');
}

/** Blocks on disk, as `du -m` counts them. */
async function installed(modules: string) {
  const paths = (await readdir(modules, { recursive: true })).map((path) => join(modules, path));
  const blocks = await Promise.all(paths.map(async (path) => (await lstat(path)).blocks));
  const packages = paths.filter((path) => /node_modules\/(@[^/]+\/)?[^/@.][^/]*\/package\.json$/.test(path));
  return { packages: packages.length, megabytes: (blocks.reduce((sum, n) => sum + n, 0) * 512) / 1_048_576 };
}

async function use(main: string): Promise<void> {
  const sluice = (...words: string[]): Promise<{ stdout: string }> =>
    run(process.execPath, [main, ...words], { cwd: folder });
  const { stdout: written } = await sluice('init', '--upstream', 'https://api.example.com');
  report.check('`sluice init` writes a configuration', written.includes('sluice check'), written);
  const { stdout: made } = await sluice('keys', 'create', '--workspace', 'acme');
  const [key = ''] = /slc_[\w-]+/.exec(made) ?? [];
  const [hash = ''] = /sha256:\w+/.exec(made) ?? [];
  report.check('`sluice keys create` prints a key and its hash', key !== '' && hash !== '', made);
  const config = join(folder, 'upstream.yaml');
  const yaml = [
    'server: { host: 127.0.0.1, port: 0, adminPort: 0 }',
    'upstreams:',
    `  api: { origins: ["${upstream.origin}"], allowPrivateAddresses: true, credential: "Bearer of-the-upstream", speaks: stripe }`,
    `workspaces: { acme: { keys: ["${hash}"] } }`,
  ];
  await writeFile(config, yaml.join('\n'));
  const { stdout: checked } = await sluice('check', '--config', config);
  report.check('`sluice check` accepts the configuration', true, checked);
  const portOf = (line: string): number | null => {
    const { message, port } = parsed(line);
    return message === 'serving' ? Number(port) : null;
  };
  await whileServing([main, 'serve', '--config', config], portOf, async (port) => {
    const asUser = { headers: { authorization: `Bearer ${key}` } };
    const text = await (await fetch(`http://127.0.0.1:${port}/via/api/orders`, asUser)).text();
    report.check('a call through `sluice serve` is answered by the upstream', text === 'made', text);
  });
  const recording = join(folder, 'recording.har');
  await writeFile(recording, JSON.stringify({ log: { version: '1.2', entries: [recorded] } }));
  const { stdout: learned } = await sluice('learn', recording);
  const isFound = learned.includes('x-ratelimit-remaining');
  report.check('`sluice learn` finds the fields of a quota', isFound, learned);
  const ports = ['--port', '0', '--admin-port', '0'];
  const { stdout: compared } = await sluice('demo', '--calls', '40', ...ports);
  const isSent = /failed for the client.* 0$/m.test(compared);
  report.check('`sluice demo` sends its burst without SDKs', isSent, compared);
  const pageOf = (line: string) => /live page +(\S+)/.exec(line)?.[1];
  await whileServing([main, 'demo', '--serve', ...ports], pageOf, async (page) => {
    const { status } = await fetch(page);
    report.check('`sluice demo --serve` shows the live page', status === 200, `status ${status}`);
  });
}

const headers = Object.entries({ 'x-ratelimit-limit': '60', 'x-ratelimit-remaining': '59' });
const recorded = {
  startedDateTime: '2026-01-01T00:00:00.000Z',
  request: { method: 'GET', url: 'https://api.acme.example/v1/things', headers: [] },
  response: {
    status: 200,
    headers: headers.map(([name, value]) => ({ name, value })),
    content: { text: '{}' },
  },
};

/** Runs the program, calls `use` with what `read` takes from a line that it prints, and ends it as an operator does. */
async function whileServing<T>(
  args: readonly string[],
  read: (line: string) => T | null | undefined,
  use: (said: T) => Promise<void>,
): Promise<void> {
  const serving = start(process.execPath, args, { cwd: folder });
  try {
    await use(await firstLine(serving, read));
  } finally {
    serving.signal('SIGTERM');
  }
  const { code } = await serving.ended;
  report.check(`SIGTERM ends \`sluice ${args[1]}\` with 0`, code === 0, `it ended with ${String(code)}`);
}

await install()
  .then(use)
  .catch((failure: unknown) => {
    const said = failure instanceof Error ? failure.stack : String(failure);
    report.check('the package installs and runs', false, said);
  });
upstream.stop();
await endAll();
process.exit(report.end());
