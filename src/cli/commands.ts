/** The commands: what each is for, which options it takes, and what runs it. Nothing here runs anything by itself. */
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { secondsOf } from '../duration.policy.ts';
import { nearest } from '../nearest.policy.ts';
import { conditionForm, readCondition } from '../../tools/rehearse/condition.ts';
import { completionFor, shells, type Completed } from './completion.ts';
import type { CliIo } from './io.ts';
import { firstUpstream, firstUpstreams } from './first-upstreams.ts';

type Options = NonNullable<ParseArgsConfig['options']>;
type Values<O extends Options> = ReturnType<
  typeof parseArgs<{ options: O & typeof help; allowPositionals: true; strict: true }>
>['values'];

/** One command as it is written down. */
interface Definition<O extends Options, Read extends object> {
  /** For the list of commands, a few words. */
  readonly purpose: string;
  /** Behind `Usage: `. */
  readonly usage: string;
  readonly options: O;
  /** What the command is run with, or the sentence that says what is wrong. */
  read(values: Values<O>, positionals: readonly string[]): Read | string;
  /** Resolves with the exit code. Imports what only this command needs. */
  run(read: Read, io: CliIo): Promise<number>;
}

/** Help that was asked for, or what was wrong with the options (exit code 2). */
interface Words {
  readonly kind: 'help' | 'usage-error';
  readonly text: string;
}
/** A command whose options have been read. */
interface Runnable {
  readonly kind: 'command';
  readonly read: object;
  run(io: CliIo): Promise<number>;
}

const help = { help: { type: 'boolean', short: 'h' } } as const;
const config = { config: { type: 'string', short: 'c', default: 'sluice.yaml' } } as const;

function define<const O extends Options, Read extends object>(definition: Definition<O, Read>) {
  const { purpose, usage, options } = definition;
  const parse = (args: readonly string[]): Words | Runnable => {
    try {
      const all = { ...options, ...help };
      const { values, positionals } = parseArgs({ args: [...args], options: all, allowPositionals: true });
      if ('help' in values && values.help === true) return { kind: 'help', text: `Usage: ${usage}` };
      const read = definition.read(values as Values<O>, positionals);
      if (typeof read === 'string') return usageError(read, usage);
      return { kind: 'command', read, run: (io) => definition.run(read, io) };
    } catch (error) {
      return usageError(optionFault(error, Object.keys(options)), usage);
    }
  };
  return { purpose, usage, parse, optionNames: Object.keys({ ...options, ...help }) };
}

const usageError = (reason: string, usage: string) =>
  ({ kind: 'usage-error', text: `${reason}\n\nUsage: ${usage}` }) as const;

/** A sentence with the known name that was probably meant, or nothing. `mark` stands before names. */
function didYouMean(text: string, known: readonly string[], mark = ''): string {
  const name = nearest(text, known);
  return name === null ? '' : ` Did you mean ${mark}${name}?`;
}

/** The first sentence of what Node says, because the rest is advice about positional arguments, and the option that was meant. */
function optionFault(error: unknown, known: readonly string[]): string {
  const [message = ''] = (error as Error).message.split('. ');
  const [, option = ''] = /^Unknown option '--([\w-]+)'/.exec(message) ?? [];
  return `${message.replace(/\.?$/, '.')}${didYouMean(option, known, '--')}`;
}

const noMore = ([first]: readonly string[]): string | null =>
  first === undefined ? null : `Unexpected "${first}".`;

/** What is wrong with the name of the file, or with what stands beside it. */
const fileFault = (file: string, positionals: readonly string[]): string | null =>
  noMore(positionals) ?? (file === '' ? '--config needs a file name.' : null);

const keysUsage = `sluice keys create --workspace NAME [--expires ISO-DATE]
       sluice keys list [--config FILE] [--find HASH-OR-ID]

create makes an API key, prints it once, with its hash and the lines for the configuration.
list shows the keys of a configuration: workspace, id, hash, validity; with --find those
whose hash begins so, or whose id is this.`;

const adminOption = { admin: { type: 'string', default: 'http://127.0.0.1:9090' } } as const;
const control = { upstream: { type: 'string', short: 'u' }, ...adminOption } as const;

/** What is wrong with the address of an admin port, or with what stands beside it. */
function adminFault(admin: string, positionals: readonly string[]): string | null {
  if (positionals.length > 0) return noMore(positionals);
  const isUrl = /^https?:$/.test(URL.parse(admin)?.protocol ?? '');
  return isUrl ? null : '--admin is a URL such as http://127.0.0.1:9090.';
}

/** `null` = it is none from 1 to `max`. */
const wholeNumber = (text: string, max: number): number | null =>
  /^\d{1,9}$/.test(text) && Number(text) >= 1 && Number(text) <= max ? Number(text) : null;

/** What is wrong with the options of a command at the admin port. */
function controlFault(
  { upstream, admin }: { readonly upstream: string; readonly admin: string },
  positionals: readonly string[],
): string | null {
  if (positionals.length === 0 && upstream === '') return '--upstream is missing.';
  return adminFault(admin, positionals);
}

/** `open` and `resume`: a verb at an upstream. */
const verbCommand = (verb: 'open' | 'resume', purpose: string, does: string) =>
  define({
    purpose,
    usage: `sluice ${verb} --upstream NAME [--admin URL]\n\n${does}`,
    options: control,
    read: ({ upstream = '', admin }, positionals) =>
      controlFault({ upstream, admin }, positionals) ?? { verb, upstream, seconds: null, admin },
    run: async (read, io) => (await import('./control.ts')).runControl(read, io),
  });

/** Every command by its words. */
const commands = {
  init: define({
    purpose: 'write a first configuration',
    usage: `sluice init [--upstream NAME-OR-ORIGIN] [--config FILE]

Writes a configuration with one upstream and an API key, and what is secret of it into .env
beside it, which the other commands read. NAME is one of ${firstUpstreams.join(', ')} (openai unless
given); an ORIGIN is like https://api.example.com. FILE is sluice.yaml unless given.`,
    options: { ...config, upstream: { type: 'string', short: 'u', default: 'openai' } },
    read({ config, upstream: written }, positionals) {
      const fault = fileFault(config, positionals);
      const [word = ''] = positionals;
      if (fault !== null) return firstUpstream(word) === null ? fault : `${fault} Say --upstream ${word}.`;
      const upstream = firstUpstream(written);
      return upstream === null
        ? `--upstream is one of ${firstUpstreams.join(', ')}, or an origin such as https://api.example.com. For http:// say https://, then write http:// and allowPrivateAddresses: true into the file.${didYouMean(written, firstUpstreams)}`
        : { config, upstream };
    },
    run: async (read, io) => (await import('./init.ts')).runInit(read, io),
  }),
  serve: define({
    purpose: 'run the gateway',
    usage: 'sluice serve [--config FILE]\n\nRuns the gateway. FILE is sluice.yaml unless given.',
    options: config,
    read: ({ config }, positionals) => fileFault(config, positionals) ?? { config },
    run: async (read, io) => (await import('./serve.ts')).runServe(read, io),
  }),
  check: define({
    purpose: 'check a configuration',
    usage: `sluice check [--config FILE] [--connect] [--against FILE.har]

Checks a configuration and prints a summary without secrets. Exit code 1 and every
problem with its line when it cannot be used.
--connect also tries Redis, origins and credentials, and says what came of each: one GET
per origin and credential. Exit code 1 when one failed.
--against names every recorded response that the upstream's description does not explain.
Exit code 1 when there is one.`,
    options: { ...config, connect: { type: 'boolean' }, against: { type: 'string' } },
    read: ({ config, connect = false, against = null }, positionals) =>
      fileFault(config, positionals) ??
      (against === '' ? '--against needs a file name.' : { config, connect, against }),
    run: async (read, io) => (await import('./check.ts')).runCheck(read, io),
  }),
  learn: define({
    purpose: 'propose a description of an API from recorded responses',
    usage: `sluice learn FILE.har

Proposes a speaks section for each origin, from recorded responses (HAR with content).`,
    options: {},
    read: (_values, [file = '', ...more]) =>
      file === '' || more.length > 0 ? 'Give one HAR file.' : { file },
    run: async (read, io) => (await import('../../tools/learn/learn.ts')).runLearn(read, io),
  }),
  'keys create': define({
    purpose: 'make an API key',
    usage: keysUsage,
    options: { workspace: { type: 'string', short: 'w' }, expires: { type: 'string' } },
    read: ({ workspace, expires = null }, positionals) =>
      noMore(positionals) ?? (workspace === undefined ? '--workspace is missing.' : { workspace, expires }),
    run: async (read, io) => (await import('./keys.ts')).runKeysCreate(read, io),
  }),
  'keys list': define({
    purpose: 'show the keys of a configuration',
    usage: keysUsage,
    options: { ...config, find: { type: 'string' } },
    read: ({ config, find = null }, positionals) => fileFault(config, positionals) ?? { config, find },
    run: async (read, io) => (await import('./keys.ts')).runKeysList(read, io),
  }),
  labels: define({
    purpose: 'show the labels of workspaces',
    usage: `sluice labels [--config FILE]

Shows which workspace is behind a label of metrics, logs and pages, and its key ids.`,
    options: config,
    read: ({ config }, positionals) => fileFault(config, positionals) ?? { config },
    run: async (read, io) => (await import('./keys.ts')).runLabels(read, io),
  }),
  tail: define({
    purpose: 'show each call that ends',
    usage: `sluice tail [--admin URL] [--json]

Prints a line for each call that ends at one replica, until it is interrupted. --json prints
the fields of the log line.`,
    options: { ...adminOption, json: { type: 'boolean', default: false } },
    read: ({ admin, json }, positionals) => adminFault(admin, positionals) ?? { admin, isJson: json },
    run: async (read, io) => (await import('./tail.ts')).runTail(read, io),
  }),
  top: define({
    purpose: 'show who waits, and how much is left',
    usage: `sluice top [--admin URL] [--once] [--json]

Shows the busiest workspaces on their upstreams over the last five minutes, all replicas
together, drawn again every two seconds on a terminal. --json prints what /activity says.`,
    options: {
      ...adminOption,
      once: { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
    },
    read: ({ admin, once, json }, positionals) =>
      adminFault(admin, positionals) ?? { admin, isOnce: once, isJson: json },
    run: async (read, io) => (await import('./top.ts')).runTop(read, io),
  }),
  record: define({
    purpose: 'record who calls, to rehearse it',
    usage: `sluice record [--admin URL]... --seconds TIME

Prints the calls that arrive within this time at the replicas whose admin ports are named, as a
line of JSON each, once the last of them has ended: labels and figures only, nothing of what is
called. TIME is a number of seconds, or like 90s or 5m; at most 10m.`,
    options: {
      admin: { type: 'string', multiple: true, default: [adminOption.admin.default] },
      seconds: { type: 'string' },
    },
    read({ admin: admins, seconds: written = '0' }, positionals) {
      const fault = admins.map((admin) => adminFault(admin, positionals)).find((fault) => fault !== null);
      if (fault !== undefined) return fault;
      const seconds = secondsOf(written) ?? 0;
      return Number.isInteger(seconds) && seconds >= 1 && seconds <= 600
        ? { admins, seconds }
        : '--seconds is a time of whole seconds from 1 to 600, such as 90, 90s or 5m.';
    },
    run: async (read, io) => (await import('./record.ts')).runRecord(read, io),
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
      traffic: { type: 'string' },
      config: { type: 'string', short: 'c' },
      times: { type: 'string', default: '1' },
      replicas: { type: 'string', default: '1' },
      json: { type: 'boolean', default: false },
      svg: { type: 'string' },
      'fail-if': { type: 'string', multiple: true, default: [] },
    },
    read({ traffic, config = null, svg = null, json, ...values }, positionals) {
      const [times, replicas] = [wholeNumber(values.times, 100), wholeNumber(values.replicas, 100)];
      const failIf = values['fail-if'].map(readCondition);
      if (traffic === undefined || positionals.length > 0)
        return noMore(positionals) ?? '--traffic is missing.';
      if (config === '') return '--config needs a file name.';
      if (times === null || replicas === null)
        return `${times === null ? '--times' : '--replicas'} is a whole number from 1 to 100.`;
      if (!failIf.every((condition) => condition !== null)) return conditionForm;
      return { traffic, config, svg, isJson: json, times, replicas, failIf };
    },
    run: async (read, io) => (await import('../../tools/rehearse/command.ts')).runRehearse(read, io),
  }),
  open: verbCommand(
    'open',
    'reopen an upstream on all replicas',
    `Reopens what responses of an upstream have closed, on all replicas.
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
  ),
  pause: define({
    purpose: 'pause an upstream on all replicas',
    usage: `sluice pause --upstream NAME [--seconds TIME] [--admin URL]

Sends nobody to an upstream for this time, on all replicas; calls wait as long as they may.
TIME is a number of seconds, or like 90s, 5m or 2h; a day unless given. sluice resume ends it.
The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.`,
    options: { ...control, seconds: { type: 'string', default: '24h' } },
    read({ upstream = '', admin, seconds: written }, positionals) {
      const seconds = secondsOf(written) ?? 0;
      const fault = controlFault({ upstream, admin }, positionals);
      if (fault !== null) return fault;
      return seconds > 0 && seconds <= 86_400
        ? { verb: 'pause' as const, upstream, seconds, admin }
        : '--seconds is a time above 0, such as 90, 90s or 5m; at most 24h.';
    },
    run: async (read, io) => (await import('./control.ts')).runControl(read, io),
  }),
  resume: verbCommand(
    'resume',
    'end a pause',
    'Ends a pause. The token of server.adminToken is taken from SLUICE_ADMIN_TOKEN.',
  ),
  demo: define({
    purpose: 'see it work on this machine',
    usage: `sluice demo [--calls N | --serve] [--port N] [--admin-port N]

Runs the gateway, simulated upstreams and a burst of real SDK traffic on this machine:
N calls (460), first straight to the upstreams, then through Sluice. The upstreams take about
340 at once. Exit code 1 when a call through Sluice failed.
--serve keeps the gateway running instead.`,
    options: {
      serve: { type: 'boolean' },
      calls: { type: 'string' },
      port: { type: 'string' },
      'admin-port': { type: 'string' },
    },
    read({ serve = false, calls, ...ports }, positionals) {
      const [port, adminPort] = [ports.port, ports['admin-port']].map(readPort);
      if (positionals.length > 0) return noMore(positionals) ?? '';
      if (port === undefined || adminPort === undefined) return 'A port is a whole number from 0 to 65535.';
      if (serve && calls !== undefined)
        return '--calls and --serve exclude each other: --serve sends no burst.';
      const size = /^\d{1,5}$/.test(calls ?? '460') ? Number(calls ?? '460') : 0;
      if (size === 0) return '--calls is a whole number from 1 to 99999.';
      return { serve, calls: size, port, adminPort };
    },
    run: async (read, io) => (await import('../../demo/demo.ts')).runDemo(read, io),
  }),
  completion: define({
    purpose: 'print what completes these words in a shell',
    usage: `sluice completion bash|zsh|fish

Prints a script that completes commands and options: source <(sluice completion bash), the
same for zsh, or sluice completion fish | source.`,
    options: {},
    read(_values, [written = '', ...more]) {
      const shell = shells.find((each) => each === written);
      if (shell === undefined) return `Give one of ${shells.join(', ')}.${didYouMean(written, shells)}`;
      return noMore(more) ?? { shell };
    },
    async run({ shell }, io) {
      io.out(completionFor(shell, completed()));
      return 0;
    },
  }),
} as const;

/** What a shell completes of each command. */
const completed = (): readonly Completed[] =>
  commandNames.map((name) => ({
    name,
    purpose: commands[name].purpose,
    options: commands[name].optionNames.map((option) => `--${option}`),
  }));

/** `null`: the default one. `undefined`: not a port. */
function readPort(text: string | undefined): number | null | undefined {
  if (text === undefined) return null;
  return /^\d{1,5}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined;
}

/** Every command, in the order in which help lists them. */
export const commandNames = Object.keys(commands) as readonly (keyof typeof commands)[];
const width = Math.max(...commandNames.map((name) => name.length)) + 2;

const overview = `<command>

${commandNames.map((name) => `  ${name.padEnd(width)}${commands[name].purpose}`).join('\n')}

sluice <command> --help says more, sluice --version the version.`;

export type Command =
  Words | (Runnable & { readonly name: keyof typeof commands }) | { readonly kind: 'version' };

/** Reads `argv` without the node and script paths. Never throws. */
export function readCommand([first = '', ...rest]: readonly string[]): Command {
  if (['--version', '-v', 'version'].includes(first)) return { kind: 'version' };
  if (['--help', '-h', 'help'].includes(first)) return { kind: 'help', text: `Usage: sluice ${overview}` };
  if (first === '') return { kind: 'usage-error', text: `Usage: sluice ${overview}` };
  const name = commandNames.find((name) => name === first || name === `${first} ${rest[0]}`);
  if (name !== undefined) {
    const parsed = commands[name].parse(name === first ? rest : rest.slice(1));
    return parsed.kind === 'command' ? { ...parsed, name } : parsed;
  }
  const verbs = commandNames
    .filter((name) => name.startsWith(`${first} `))
    .map((name) => name.slice(first.length + 1));
  if (verbs.length === 0)
    return usageError(`Unknown command "${first}".${didYouMean(first, commandNames)}`, `sluice ${overview}`);
  return rest.some((arg) => arg === '--help' || arg === '-h')
    ? { kind: 'help', text: `Usage: ${keysUsage}` }
    : usageError(
        `The two things to do with ${first} are: ${verbs.join(' and ')}.${didYouMean(rest[0] ?? '', verbs)}`,
        keysUsage,
      );
}
