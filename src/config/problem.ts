/**
 * What can be wrong with a configuration file, and how it is reported. Owns the one error type of this folder and its text;
 * finding problems is the work of `schema.ts`. Invariant: no text here ever holds a value of the
 * file other than names and numbers, because values may be secrets.
 */

/** Keys from the root of the file to the value at fault; list positions are numbers. */
export type Path = readonly (string | number)[];

/** One mistake. */
export interface Problem {
  /** Dotted key path (`upstreams.openai.limits`), or `''` for the file as a whole. */
  readonly path: string;
  /** 1-based line, or `null` when the file could not be read. */
  readonly line: number | null;
  /** What is wrong, as a clause without a full stop. */
  readonly reason: string;
  /** What to write instead. */
  readonly fix: string;
}

/** What is wrong with a value, and what to write instead. */
export type Fault = Pick<Problem, 'reason' | 'fix'>;

/** `['keys', 0, 'hash']` → `keys[0].hash`; keys with unusual characters are quoted. */
export function pathText(path: Path): string {
  return path.reduce<string>((text, key) => {
    if (typeof key === 'number') return `${text}[${key}]`;
    if (!/^[\w-]+$/.test(key)) return `${text}[${JSON.stringify(key)}]`;
    return text === '' ? key : `${text}.${key}`;
  }, '');
}

/** The configuration cannot be used. Holds every problem of the file, in the order of its lines. */
export class ConfigError extends Error {
  readonly problems: readonly Problem[];
  readonly file: string;

  constructor(file: string, problems: readonly Problem[]) {
    super(describe(file, problems));
    this.name = 'ConfigError';
    this.file = file;
    this.problems = problems;
  }
}

function describe(file: string, problems: readonly Problem[]): string {
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const lines = problems.map(({ path, line, reason, fix }) => {
    const position = [line === null ? '' : `line ${line}`, path].filter((part) => part !== '').join(', ');
    return `  ${position === '' ? '' : `${position}: `}${reason}\n    fix: ${fix}`;
  });
  return [`${file}: ${count}`, ...lines].join('\n');
}
