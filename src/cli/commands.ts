/** The commands: what each is for, which options it takes, and what runs it. */
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { conditionForm, readCondition } from '../../tools/rehearse/condition.ts';
import { secondsOf } from '../duration.policy.ts';
import { nearest } from '../nearest.policy.ts';
import { packageVersion } from '../version.ts';
import { UsageError, type CliIo } from './io.ts';

type Options = NonNullable<ParseArgsConfig['options']>;
type Values<O extends Options> = ReturnType<typeof parseArgs<{ options: O; strict: true }>>['values'];

/** One command as it is written down. */
interface Command<O extends Options> {
  /** For the list of commands, a few words. */
  readonly purpose: string;
  /** Behind `Usage: `. */
  readonly usage: string;
  /** A text that must be given has the default `''`. */
  readonly options: O;
  /** How many words it takes beside its options. Default: none. */
  readonly words?: number;
  /** Resolves with the exit code. Imports what only this command needs. @throws UsageError */
  run(values: Values<O>, io: CliIo, words: readonly string[]): Promise<number>;
}

const help = { help: { type: 'boolean', short: 'h' } } as const;

/** The command, with `start`, which reads its arguments. */
const define = <const O extends Options>(command: Command<O>) => ({
  ...command,
  async start(args: readonly string[], io: CliIo): Promise<number> {
    const { usage, options, words = 0 } = command;
    const { values, positionals } = parsed(args, options);
    if (values['help'] === true) {
      io.out(`Usage: ${usage}`);
      return 0;
    }
    const further = positionals[words];
    if (further !== undefined) throw new UsageError(`Unexpected "${further}".`);
    const [empty] = Object.entries<unknown>(values).find(([, value]) => value === '') ?? [];
    if (empty !== undefined) throw new UsageError(`--${empty} is missing.`);
    return command.run(values as Values<O>, io, positionals);
  },
});

const config = { config: { type: 'string', short: 'c', default: 'sluice.yaml' } } as const;
const admin = { admin: { type: 'string', default: 'http://127.0.0.1:9090' } } as const;
const json = { json: { type: 'boolean', default: false } } as const;
const control = { upstream: { type: 'string', short: 'u', default: '' }, ...admin } as const;

/** A command about an upstream that takes nothing but its name. */
const verb = (name: 'open' | 'resume', purpose: string, does: string) =>
  define({
    purpose,
    usage: `sluice ${name} --upstream NAME [--admin URL]

${does}
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
    options: control,
    run: async (values, io) => (await import('./running.ts')).runControl(name, values, io),
  });

/** Every command by its words, in the order in which help lists them. */
export const commands = {
  init: define({
    purpose: 'write a first configuration',
    usage: `sluice init [--upstream NAME-OR-ORIGIN] [--config FILE]

Writes a configuration with one upstream and an API key, and what is secret of it into .env
beside it, which the other commands read. NAME is openai (unless given) or shopify; an ORIGIN is
like https://api.example.com. FILE is sluice.yaml unless given.`,
    options: { ...config, upstream: { type: 'string', short: 'u', default: 'openai' } },
    run: async (values, io) => (await import('./init.ts')).runInit(values, io),
  }),
  serve: define({
    purpose: 'run the gateway',
    usage: 'sluice serve [--config FILE]\n\nRuns the gateway. FILE is sluice.yaml unless given.',
    options: config,
    run: async (values, io) => (await import('./serve.ts')).runServe(values, io),
  }),
  check: define({
    purpose: 'check a configuration',
    usage: `sluice check [--config FILE] [--against FILE.har]

Checks a configuration and prints a summary without secrets. Exit code 1 and every
problem with its line when it cannot be used.
--against names every recorded response that the upstream's description does not explain.
Exit code 1 when there is one.`,
    options: { ...config, against: { type: 'string' } },
    run: async (values, io) => (await import('./check.ts')).runCheck(values, io),
  }),
  learn: define({
    purpose: 'propose a description of an API from recorded responses',
    usage: `sluice learn FILE.har

Proposes a speaks section for each origin, from recorded responses (HAR with content).`,
    options: {},
    words: 1,
    async run(_values, io, [file]) {
      if (file === undefined) throw new UsageError('Give one HAR file.');
      return (await import('../../tools/learn/learn.ts')).runLearn({ file }, io);
    },
  }),
  'keys create': define({
    purpose: 'make an API key',
    usage: `sluice keys create --workspace NAME [--expires ISO-DATE]

Makes an API key, prints it once, with its hash and the lines for the configuration.`,
    options: { workspace: { type: 'string', short: 'w', default: '' }, expires: { type: 'string' } },
    run: async (values, io) => (await import('./keys.ts')).runKeysCreate(values, io),
  }),
  labels: define({
    purpose: 'show the labels of workspaces',
    usage: `sluice labels [--config FILE]

Shows which workspace is behind a label of metrics, logs and pages, and its key ids.`,
    options: config,
    run: async (values, io) => (await import('./keys.ts')).runLabels(values, io),
  }),
  tail: define({
    purpose: 'show each call that ends',
    usage: `sluice tail [--admin URL] [--json]

Prints a line for each call that ends at one replica, until it is interrupted. --json prints
the fields of the log line.`,
    options: { ...admin, ...json },
    run: async (values, io) => (await import('./running.ts')).runTail(values, io),
  }),
  top: define({
    purpose: 'show who waits, and how much is left',
    usage: `sluice top [--admin URL] [--once] [--json]

Shows the busiest workspaces on their upstreams over the last five minutes, all replicas
together, drawn again every two seconds on a terminal. --json prints what /activity says.`,
    options: { ...admin, once: { type: 'boolean', default: false }, ...json },
    run: async (values, io) => (await import('./running.ts')).runTop(values, io),
  }),
  record: define({
    purpose: 'record who calls, to rehearse it',
    usage: `sluice record [--admin URL]... --seconds TIME

Prints the calls that arrive within this time at the replicas whose admin ports are named, as a
line of JSON each, once the last of them has ended: labels and figures only, nothing of what is
called. TIME is a number of seconds, or like 90s or 5m; at most 10m.`,
    options: {
      admin: { type: 'string', multiple: true, default: [admin.admin.default] },
      seconds: { type: 'string', default: '' },
    },
    async run({ admin: admins, ...values }, io) {
      const seconds = secondsWithin(values.seconds, 600);
      return (await import('./record.ts')).runRecord({ admins, seconds }, io);
    },
  }),
  rehearse: define({
    purpose: 'see what other limits do to recorded calls',
    usage: `sluice rehearse --traffic FILE [--config FILE] [--times N] [--replicas N] [--json]
                [--svg FILE] [--fail-if CONDITION]...

Runs recorded calls (sluice record) in virtual time through the scheduler: under the limits that
there were, and under those of a configuration, with every call N times and over N replicas if
asked. Limits that the configuration does not write stay as recorded.
--svg writes a picture of calls waiting and refused over time.
--fail-if: exit code 1 if it holds for an upstream or a workspace afterwards, such as
'refused > 0' or 'p95 > 10' (seconds of waiting).`,
    options: {
      traffic: { type: 'string', default: '' },
      config: { type: 'string', short: 'c' },
      times: { type: 'string', default: '1' },
      replicas: { type: 'string', default: '1' },
      ...json,
      svg: { type: 'string' },
      'fail-if': { type: 'string', multiple: true, default: [] },
    },
    async run({ traffic, config = null, svg = null, json: isJson, ...values }, io) {
      const times = wholeNumber('times', values.times, 100);
      const replicas = wholeNumber('replicas', values.replicas, 100);
      const failIf = values['fail-if'].map(readCondition);
      if (!failIf.every((condition) => condition !== null)) throw new UsageError(conditionForm);
      const command = { traffic, config, svg, isJson, times, replicas, failIf };
      return (await import('../../tools/rehearse/command.ts')).runRehearse(command, io);
    },
  }),
  open: verb(
    'open',
    'reopen an upstream on all replicas',
    'Reopens what responses of an upstream have closed, on all replicas.',
  ),
  pause: define({
    purpose: 'pause an upstream on all replicas',
    usage: `sluice pause --upstream NAME [--seconds TIME] [--admin URL]

Sends nobody to an upstream for this time, on all replicas; calls wait as long as they may.
TIME is a number of seconds, or like 90s, 5m or 2h; a day unless given. sluice resume ends it.
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
    options: { ...control, seconds: { type: 'string', default: '24h' } },
    async run(values, io) {
      const seconds = secondsWithin(values.seconds, 86_400);
      return (await import('./running.ts')).runControl('pause', { ...values, seconds }, io);
    },
  }),
  resume: verb('resume', 'end a pause', 'Ends a pause.'),
  demo: define({
    purpose: 'see it work on this machine',
    usage: `sluice demo [--calls N | --serve] [--port N] [--admin-port N]

Runs the gateway, simulated upstreams and a burst of real SDK traffic on this machine:
N calls (460), first straight to the upstreams, then through Sluice. The upstreams take about
340 at once. Exit code 1 when a call through Sluice failed.
--serve keeps the gateway running instead.`,
    options: {
      serve: { type: 'boolean', default: false },
      calls: { type: 'string' },
      port: { type: 'string' },
      'admin-port': { type: 'string' },
    },
    async run({ serve, calls, port, 'admin-port': adminPort }, io) {
      if (serve && calls !== undefined)
        throw new UsageError('--calls and --serve exclude each other: --serve sends no burst.');
      const portOf = (option: string, text?: string): number | null =>
        text === undefined ? null : wholeNumber(option, text, 65_535, 0);
      const ports = { port: portOf('port', port), adminPort: portOf('admin-port', adminPort) };
      const command = { serve, calls: wholeNumber('calls', calls ?? '460', 99_999), ...ports };
      return (await import('../../demo/demo.ts')).runDemo(command, io);
    },
  }),
} as const;

export const commandNames = Object.keys(commands) as readonly (keyof typeof commands)[];
const width = Math.max(...commandNames.map((name) => name.length)) + 2;

const overview = `sluice <command>

${commandNames.map((name) => `  ${name.padEnd(width)}${commands[name].purpose}`).join('\n')}

sluice <command> --help says more, sluice --version the version.`;

/** Runs what `argv`, without the node and script paths, asks for. Resolves with the exit code: 2 where that is not to be understood. */
export async function runCommand([first = '', ...rest]: readonly string[], io: CliIo): Promise<number> {
  if (['--version', '-v', 'version'].includes(first)) {
    io.out(packageVersion());
    return 0;
  }
  if (['--help', '-h', 'help'].includes(first)) {
    io.out(`Usage: ${overview}`);
    return 0;
  }
  const [second, ...others] = rest;
  const isAlone = second === undefined || second.startsWith('-');
  const [name, args] =
    first === 'keys' ? (isAlone ? ['keys create', rest] : [`keys ${second}`, others]) : [first, rest];
  const known = commandNames.find((each) => each === name);
  try {
    if (known !== undefined) return await commands[known].start(args, io);
    throw new UsageError(name === '' ? '' : `Unknown command "${name}".${didYouMean(name, commandNames)}`);
  } catch (error) {
    if (!(error instanceof UsageError)) throw error;
    const usage = known === undefined ? overview : commands[known].usage;
    io.err(`${error.message}\n\nUsage: ${usage}`.trimStart());
    return 2;
  }
}

/** @throws UsageError in the first sentence of what Node says, because the rest is advice about positional arguments */
function parsed(args: readonly string[], options: Options) {
  try {
    return parseArgs({ args: [...args], options: { ...options, ...help }, allowPositionals: true });
  } catch (error) {
    const [message = ''] = (error as Error).message.split('. ');
    const [, option = ''] = /^Unknown option '--([\w-]+)'/.exec(message) ?? [];
    throw new UsageError(`${message.replace(/\.?$/, '.')}${didYouMean(option, Object.keys(options), '--')}`);
  }
}

/** A sentence with the known name that was probably meant, or nothing. `mark` stands before names. */
function didYouMean(text: string, known: readonly string[], mark = ''): string {
  const name = nearest(text, known);
  return name === null ? '' : ` Did you mean ${mark}${name}?`;
}

/** @throws UsageError */
function wholeNumber(option: string, text: string, max: number, min = 1): number {
  if (/^\d{1,9}$/.test(text) && Number(text) >= min && Number(text) <= max) return Number(text);
  throw new UsageError(`--${option} is a whole number from ${min} to ${max}.`);
}

/** @throws UsageError */
function secondsWithin(text: string, max: number): number {
  const seconds = secondsOf(text) ?? 0;
  if (Number.isInteger(seconds) && seconds >= 1 && seconds <= max) return seconds;
  throw new UsageError(`--seconds is a time of whole seconds from 1 to ${max}, such as 90, 90s or 5m.`);
}
