import { createHook } from 'node:async_hooks';
import { TestEnvironment } from 'jest-environment-node';

/**
 * Jest environment: a test file that leaves a timer, socket, server, child process or thread behind fails, with the line that
 * made it. What keeps the process alive counts whoever made it; a timer that does not counts when no library
 * made it, and no `AbortSignal.timeout`. Jest's own timers never count. Tickets and leases of the file's gateways count as
 * `open-calls.ts` names them. A file with a failed test is not judged.
 */
const kinds = new Map([
  ['Timeout', 'timer'],
  ['TCPSERVERWRAP', 'server'],
  ['PIPESERVERWRAP', 'server on a pipe'],
  ['TCPWRAP', 'socket'],
  ['PIPEWRAP', 'pipe'],
  ['UDPWRAP', 'UDP socket'],
  ['PROCESSWRAP', 'child process'],
  ['WORKER', 'thread'],
  ['FSEVENTWRAP', 'file watcher'],
  ['STATWATCHER', 'file watcher'],
]);

/** For how long what is being closed may take to close, after the last hook of the file. */
const defaultGraceMs = 2_000;
const pauseMs = 10;
const framesKept = 30;

export default class LeakCheck extends TestEnvironment {
  #graceMs;
  #open = new Map();
  /** Asked after the last hook: what else is open, in words. `open-calls.ts` finds it as a global of the test file. */
  #leftOpen = [];
  #testName = '';
  #hasEnded = false;
  #hasFailed = false;
  #hook = createHook({
    trackPromises: false,
    init: (id, type, _trigger, resource) => {
      const kind = kinds.get(type);
      if (kind !== undefined && !this.#hasEnded)
        this.#open.set(id, { kind, resource: new WeakRef(resource), made: here() });
    },
    destroy: (id) => this.#open.delete(id),
  });

  constructor(config, context) {
    super(config, context);
    this.#graceMs = config.projectConfig.testEnvironmentOptions.graceMs ?? defaultGraceMs;
  }

  async setup() {
    await super.setup();
    this.#hook.enable();
    this.global[Symbol.for('sluice.leak-check')] = {
      testName: () => this.#testName,
      leftOpen: this.#leftOpen,
    };
  }

  /** A test that fails may not reach its tidying: its own message is the one to read. */
  handleTestEvent({ name, test }) {
    if (name === 'test_fn_failure' || name === 'hook_failure') this.#hasFailed = true;
    if (name === 'test_start') this.#testName = test.name;
  }

  async teardown() {
    this.#hasEnded = true;
    let left = this.#hasFailed ? [] : this.#leaks();
    // The grace is counted in pauses: to look at thousands of sockets takes seconds on a busy machine, in which none can close.
    for (let waitedMs = 0; left.length > 0 && waitedMs < this.#graceMs; waitedMs += pauseMs) {
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
      left = this.#leaks();
    }
    this.#hook.disable();
    this.#open.clear();
    await super.teardown();
    if (left.length > 0) throw new Error(messageOf(left, this.#graceMs));
  }

  #leaks() {
    const made = [...this.#open.values()].filter(isLeak).map(textOf);
    return [...made, ...this.#leftOpen.flatMap((ask) => ask())];
  }
}

/** The stack of now; its text is made only when somebody reads it. */
function here() {
  const made = {};
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = framesKept;
  Error.captureStackTrace(made, here);
  Error.stackTraceLimit = limit;
  return made;
}

function isLeak({ kind, resource, made }) {
  const one = resource.deref();
  if (one === undefined) return false;
  const maker = framesOf(made)[0] ?? '';
  if (/node_modules\/(@jest\/|jest-)/.test(maker)) return false;
  // A closed handle has no native part any more, and `hasRef` returns undefined.
  if (one.hasRef === undefined || one.hasRef() === true) return true;
  // `AbortSignal.timeout` cannot be ended early, and keeps nothing alive.
  if (made.stack.includes('node:internal/abort_controller')) return false;
  return kind === 'timer' && maker !== '' && !maker.includes('node_modules');
}

/** The frames outside Node itself, the innermost first. */
function framesOf({ stack }) {
  return stack
    .split('\n')
    .slice(1)
    .filter(
      (line) =>
        !/[( ]node:|^ +at (new Promise|Array\.)/.test(line) && !line.includes('test/support/leak-check.mjs:'),
    );
}

/** What was left open, and the lines that made it. */
function textOf({ kind, resource, made }) {
  const frames = framesOf(made);
  return [
    `a ${kind}${addressOf(resource.deref())} made here:`,
    ...(frames.length > 0 ? frames.slice(0, 6) : ['    inside Node']),
  ].join('\n');
}

function messageOf(leaks, graceMs) {
  return `This test file left open, ${graceMs} ms after its last hook (close it in the test or in afterAll):\n${leaks.join('\n')}`;
}

/** Where a socket or server is bound: Node makes a server's handle behind a look-up, outside the lines that asked for it. */
function addressOf(handle) {
  const bound = {};
  if (handle?.getsockname?.(bound) !== 0) return '';
  return ` on ${bound.address}:${bound.port}`;
}
