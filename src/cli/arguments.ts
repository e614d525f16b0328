/**
 * Reads the command line into one of a closed set of commands. Owns names, options and usage texts; runs nothing.
 */
import { parseArgs } from 'node:util';
import type { ParseArgsConfig } from 'node:util';

export type Command =
  | { readonly kind: 'serve'; readonly config: string }
  | { readonly kind: 'check'; readonly config: string }
  | { readonly kind: 'keys-create'; readonly workspace: string; readonly expires: string | null }
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
  check: `sluice check [--config FILE]

Checks a configuration and prints a summary without secrets. Exit code 1 and every
problem with its line when it cannot be used.`,
  keys: `sluice keys create --workspace NAME [--expires ISO-DATE]

Makes an API key, prints it once, with its hash and the lines for the configuration.`,
  demo: `sluice demo [--calls N | --serve] [--port N] [--admin-port N]

Runs the gateway, simulated upstreams and a burst of real SDK traffic on this machine:
N calls (460), first straight to the upstreams, then through Sluice. The upstreams take about
340 at once. Exit code 1 when a call through Sluice failed.
--serve keeps the gateway running instead.`,
} as const;

const overview = `Usage: sluice <command>

  serve [--config FILE]              run the gateway
  check [--config FILE]              check a configuration
  keys create --workspace NAME       make an API key
  demo                               see it work on this machine

sluice <command> --help tells more, sluice --version the version.`;

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
    default:
      return parseServeOrCheck(name === 'check' ? 'check' : 'serve', rest);
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

function parseServeOrCheck(kind: 'serve' | 'check', args: readonly string[]): Command {
  const { values, positionals, fault } = read(args, config);
  if (values === null) return usageError(fault, usages[kind]);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages[kind]}` };
  if (positionals.length > 0) return usageError(`Unexpected "${positionals[0] ?? ''}".`, usages[kind]);
  if (values.config === '') return usageError('--config needs a file name.', usages[kind]);
  return { kind, config: values.config };
}

function parseKeys(args: readonly string[]): Command {
  const options = {
    workspace: { type: 'string', short: 'w' },
    expires: { type: 'string' },
    ...help,
  } as const;
  const { values, positionals, fault } = read(args, options);
  if (values === null) return usageError(fault, usages.keys);
  if (values.help === true) return { kind: 'help', text: `Usage: ${usages.keys}` };
  if (positionals.length !== 1 || positionals[0] !== 'create') {
    return usageError('The one thing to do with keys is: create.', usages.keys);
  }
  if (values.workspace === undefined) return usageError('--workspace is missing.', usages.keys);
  return { kind: 'keys-create', workspace: values.workspace, expires: values.expires ?? null };
}

function parseDemo(args: readonly string[]): Command {
  const options = {
    serve: { type: 'boolean' },
    calls: { type: 'string', default: '460' },
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
  const calls = /^\d{1,5}$/.test(values.calls) ? Number(values.calls) : 0;
  if (calls === 0) return usageError('--calls is a whole number from 1 to 99999.', usages.demo);
  return { kind: 'demo', serve: values.serve ?? false, calls, port, adminPort };
}

/** `undefined` = not a port. */
function portOf(text: string | undefined): number | null | undefined {
  if (text === undefined) return null;
  return /^\d{1,5}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined;
}
