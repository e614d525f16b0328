/**
 * Reads the command line into one of a closed set of commands. Owns names, options and usage texts; runs nothing.
 */
import { parseArgs } from 'node:util';
import type { ControlCommand } from './control.ts';
import type { ParseArgsConfig } from 'node:util';

export type Command =
  | { readonly kind: 'serve'; readonly config: string }
  | {
      readonly kind: 'check';
      readonly config: string;
      readonly connect: boolean;
      readonly against: string | null;
    }
  | { readonly kind: 'learn'; readonly file: string }
  | { readonly kind: 'keys-create'; readonly workspace: string; readonly expires: string | null }
  | { readonly kind: 'keys-list'; readonly config: string; readonly find: string | null }
  | { readonly kind: 'labels'; readonly config: string }
  | ({ readonly kind: 'control' } & ControlCommand)
  /** `serve`: no burst, keep running. `calls`: size of the burst. Ports: `null` = the default ones. */
  | {
      readonly kind: 'demo';
      readonly serve: boolean;
      readonly calls: number;
      readonly port: number | null;
      readonly adminPort: number | null;
    }
  | { readonly kind: 'help'; readonly text: string }
  | { readonly kind: 'version' }
  /** Exit code 2; `text` says what was wrong and how the command is used. */
  | { readonly kind: 'usage-error'; readonly text: string };

const usages = {
  serve: `sluice serve [--config FILE]

Runs the gateway. FILE is sluice.yaml unless given.`,
  check: `sluice check [--config FILE] [--connect] [--against FILE.har]

Checks a configuration and prints a summary without secrets. Exit code 1 and every
problem with its line when it cannot be used.
--connect also tries Redis, origins and credentials, and says what came of each: one GET
per origin and credential. Exit code 1 when one failed.
--against names every recorded response that the upstream's description does not explain.
Exit code 1 when there is one.`,
  learn: `sluice learn FILE.har

Proposes a speaks section for each origin, from recorded responses (HAR with content).`,
  keys: `sluice keys create --workspace NAME [--expires ISO-DATE]
       sluice keys list [--config FILE] [--find HASH-OR-ID]

create makes an API key, prints it once, with its hash and the lines for the configuration.
list shows the keys of a configuration: workspace, id, hash, validity; with --find those
whose hash begins so, or whose id is this.`,
  labels: `sluice labels [--config FILE]

Shows which workspace is behind a label of metrics, logs and pages, and its key ids.`,
  open: `sluice open --upstream NAME [--admin URL]

Reopens what responses of an upstream have closed, on all replicas.
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
  pause: `sluice pause --upstream NAME --seconds N [--admin URL]

Sends nobody to an upstream for N seconds, on all replicas; calls wait as long as they may.
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
  resume: `sluice resume --upstream NAME [--admin URL]

Ends a pause. The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
  demo: `sluice demo [--calls N | --serve] [--port N] [--admin-port N]

Runs the gateway, simulated upstreams and a burst of real SDK traffic on this machine:
N calls (460), first straight to the upstreams, then through Sluice. The upstreams take about
340 at once. Exit code 1 when a call through Sluice failed.
--serve keeps the gateway running instead.`,
} as const;

const overview = `Usage: sluice <command>

  serve [--config FILE]              run the gateway
  check [--config FILE]              check a configuration
  learn FILE.har                     propose a description of an API from recorded responses
  keys create --workspace NAME       make an API key
  keys list [--config FILE]          show the keys of a configuration
  labels [--config FILE]             show the labels of workspaces
  open|pause|resume --upstream NAME  reopen, pause, resume an upstream
  demo                               see it work on this machine

sluice <command> --help says more, sluice --version the version.`;

const help = { help: { type: 'boolean', short: 'h' } } as const;
const config = { config: { type: 'string', short: 'c', default: 'sluice.yaml' }, ...help } as const;

/** Parses `argv` without the node and script paths. Never throws. */
export function parseArguments(argv: readonly string[]): Command {
  const [name = '', ...rest] = argv;
  if (name === '--version' || name === '-v' || name === 'version') return { kind: 'version' };
  if (name === '--help' || name === '-h' || name === 'help') return { kind: 'help', text: overview };
  if (name === '') return { kind: 'usage-error', text: overview };
  if (!Object.hasOwn(usages, name)) return usageError(`Unknown command "${name}".`, overview);
  switch (name) {
    case 'keys':
      return parseKeys(rest);
    case 'demo':
      return parseDemo(rest);
    case 'open':
    case 'pause':
    case 'resume':
      return parseControl(name, rest);
    case 'learn':
      return parseLearn(rest);
    case 'labels':
      return parseFileCommand('labels', rest);
    default:
      return name === 'check' ? parseCheck(rest) : parseFileCommand('serve', rest);
  }
}

const usageError = (reason: string, usage: string): Command => ({
  kind: 'usage-error',
  text: `${reason}\n\n${usage.startsWith('Usage') ? usage : `Usage: ${usage}`}`,
});

/** The options, or the sentence that says what is wrong with them. */
function read<T extends NonNullable<ParseArgsConfig['options']>>(args: readonly string[], options: T) {
  try {
    const parsed = parseArgs({ args: [...args], options, allowPositionals: true, strict: true });
    return { values: parsed.values, positionals: parsed.positionals, fault: null };
  } catch (error) {
    // The first sentence only: the rest is advice about positional arguments.
    const fault = error instanceof Error ? (error.message.split('. ')[0] ?? '') : String(error);
    return { values: null, positionals: [], fault: fault.replace(/\.?$/, '.') };
  }
}

function parseFileCommand(kind: 'serve' | 'labels', args: readonly string[]): Command {
  const { values, positionals, fault } = read(args, config);
  if (values === null) return usageError(fault, usages[kind]);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages[kind]}` };
  const wrong = fileFault(values.config, positionals);
  return wrong === null ? { kind, config: values.config } : usageError(wrong, usages[kind]);
}

function parseCheck(args: readonly string[]): Command {
  const { values, positionals, fault } = read(args, {
    ...config,
    connect: { type: 'boolean' },
    against: { type: 'string' },
  } as const);
  if (values === null) return usageError(fault, usages.check);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages.check}` };
  const wrong = fileFault(values.config, positionals);
  if (wrong !== null) return usageError(wrong, usages.check);
  if (values.against === '') return usageError('--against needs a file name.', usages.check);
  const { config: file, connect = false, against = null } = values;
  return { kind: 'check', config: file, connect, against };
}

function parseLearn(args: readonly string[]): Command {
  const { values, positionals, fault } = read(args, help);
  if (values === null) return usageError(fault, usages.learn);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages.learn}` };
  const [file = ''] = positionals;
  if (file === '' || positionals.length > 1) return usageError('Give one HAR file.', usages.learn);
  return { kind: 'learn', file };
}

/** What is wrong with the name of the file, or with what stands beside it. */
function fileFault(file: string, positionals: readonly string[]): string | null {
  if (positionals.length > 0) return `Unexpected "${positionals[0] ?? ''}".`;
  return file === '' ? '--config needs a file name.' : null;
}

function parseKeys(args: readonly string[]): Command {
  const options = {
    workspace: { type: 'string', short: 'w' },
    expires: { type: 'string' },
    find: { type: 'string' },
    ...config,
  } as const;
  const { values, positionals, fault } = read(args, options);
  if (values === null) return usageError(fault, usages.keys);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages.keys}` };
  const [verb = ''] = positionals;
  if (positionals.length !== 1 || !['create', 'list'].includes(verb)) {
    return usageError('The two things to do with keys are: create and list.', usages.keys);
  }
  if (verb === 'list') return { kind: 'keys-list', config: values.config, find: values.find ?? null };
  if (values.workspace === undefined) return usageError('--workspace is missing.', usages.keys);
  return { kind: 'keys-create', workspace: values.workspace, expires: values.expires ?? null };
}

function parseControl(verb: ControlCommand['verb'], args: readonly string[]): Command {
  const options = {
    upstream: { type: 'string', short: 'u' },
    admin: { type: 'string', default: 'http://127.0.0.1:9090' },
    seconds: { type: 'string' },
    ...help,
  } as const;
  const { values, positionals, fault } = read(args, options);
  if (values === null) return usageError(fault, usages[verb]);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages[verb]}` };
  if (positionals.length > 0) return usageError(`Unexpected "${positionals[0] ?? ''}".`, usages[verb]);
  if (values.upstream === undefined) return usageError('--upstream is missing.', usages[verb]);
  if (!/^https?:$/.test(URL.parse(values.admin)?.protocol ?? ''))
    return usageError('--admin is a URL such as http://127.0.0.1:9090.', usages[verb]);
  const seconds = Number(values.seconds ?? 0);
  const isPause = verb === 'pause';
  if (isPause ? !(seconds > 0 && seconds <= 86_400) : values.seconds !== undefined)
    return usageError(
      isPause ? '--seconds is a number above 0, at most 86400.' : '--seconds belongs to pause.',
      usages[verb],
    );
  const { upstream, admin } = values;
  return { kind: 'control', verb, upstream, seconds: isPause ? seconds : null, admin };
}

function parseDemo(args: readonly string[]): Command {
  const options = {
    serve: { type: 'boolean' },
    calls: { type: 'string' },
    port: { type: 'string' },
    'admin-port': { type: 'string' },
    ...help,
  } as const;
  const { values, positionals, fault } = read(args, options);
  if (values === null) return usageError(fault, usages.demo);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages.demo}` };
  if (positionals.length > 0) return usageError(`Unexpected "${positionals[0] ?? ''}".`, usages.demo);
  const [port, adminPort] = [portOf(values.port), portOf(values['admin-port'])];
  if (port === undefined || adminPort === undefined) {
    return usageError('A port is a whole number from 0 to 65535.', usages.demo);
  }
  if (values.serve === true && values.calls !== undefined) {
    return usageError('--calls and --serve exclude each other: --serve sends no burst.', usages.demo);
  }
  const text = values.calls ?? '460';
  const calls = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  if (calls === 0) return usageError('--calls is a whole number from 1 to 99999.', usages.demo);
  return { kind: 'demo', serve: values.serve ?? false, calls, port, adminPort };
}

/** `undefined` = not a port. */
function portOf(text: string | undefined): number | null | undefined {
  if (text === undefined) return null;
  return /^\d{1,5}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined;
}
