/**
 * Makes one Lua source of the files in `lua/`: puts includes in place, writes the policy's constants, and turns fields of
 * records into positions. Every mistake in the files is an error when the process starts, not when the first call comes.
 * Nothing but these files and numbers of the policy ever becomes Lua source; what a call carries goes in KEYS and ARGV.
 *
 * - `-- @include name` becomes `lua/name.lua`, once: where it is first named.
 * - `-- @constant a b` becomes `local a = 1` and `local b = 2` with the values of the policy.
 * - `-- @record lane: key weight` (goes on in comment lines that are indented) says that a variable named `lane` holds a
 *   list; `lane.weight` becomes `lane[2]`. A record has these fields and no others.
 */

/** Text of `lua/<name>.lua`, or `null` when there is no such file. */
export type ReadLua = (name: string) => string | null;

type Value = number | string;
export type Constants = Readonly<Record<string, Value | readonly Value[]>>;

/** The whole source. Throws when an include or a constant is unknown, a file includes itself, or a field is none. */
export function luaSource(name: string, read: ReadLua, constants: Constants): string {
  return withPositions(withConstants(withIncludes(name, read), constants));
}

/** The source of one file with every include in place; each file is included once, where it is first named. */
export function withIncludes(name: string, read: ReadLua): string {
  const included = new Set<string>();
  const open: string[] = [];
  const resolve = (file: string): string => {
    if (open.includes(file)) throw new Error(`lua: ${[...open, file].join(' includes ')}`);
    if (included.has(file)) return '';
    const source = read(file);
    if (source === null) throw new Error(`lua: no file ${file}.lua (${open.join(' includes ') || 'script'})`);
    open.push(file);
    const resolved = source.replace(/^-- @include ([\w-]+)$/gm, (_line, wanted: string) => resolve(wanted));
    open.pop();
    included.add(file);
    return resolved;
  };
  return resolve(name);
}

/** Numbers are written so that Lua reads the same double back. */
export const withConstants = (source: string, constants: Constants): string =>
  source.replace(/^( *)-- @constant ([\w ]+)$/gm, (_line, indent: string, names: string) =>
    names
      .trim()
      .split(/ +/)
      .map((name) => {
        const value = constants[name];
        if (value === undefined) throw new Error(`lua: no constant ${name}`);
        return `${indent}local ${name} = ${literal(value)}`;
      })
      .join('\n'),
  );

function literal(value: Value | readonly Value[]): string {
  if (typeof value === 'number') return String(value);
  return typeof value === 'string' ? `'${value}'` : `{ ${value.map(literal).join(', ')} }`;
}

/** Fields of every record, by the name that its variables have. */
export function recordsIn(source: string): ReadonlyMap<string, readonly string[]> {
  const declarations = source.matchAll(/^-- @record (\w+): (.*(?:\n-- {2,}.*)*)$/gm);
  return new Map(
    Array.from(declarations, ([, variable = '', fields = '']) => [
      variable,
      fields.replaceAll('\n--', ' ').trim().split(/\s+/),
    ]),
  );
}

/** Comments stay as they are. */
export function withPositions(source: string): string {
  const records = recordsIn(source);
  if (records.size === 0) return source;
  const access = new RegExp(`(?<![\\w.'"])(${[...records.keys()].join('|')})\\.(\\w+)`, 'g');
  const line = (text: string): string => {
    const at = text.indexOf('--');
    const code = at < 0 ? text : text.slice(0, at);
    const positioned = code.replace(access, (_access, variable: string, field: string) => {
      const position = records.get(variable)?.indexOf(field) ?? -1;
      if (position < 0) throw new Error(`lua: a ${variable} has no field ${field}`);
      return `${variable}[${position + 1}]`;
    });
    if (/[)\]]\.[a-z]/.test(positioned)) throw new Error(`lua: a field of what has no name: ${code.trim()}`);
    return positioned + text.slice(code.length);
  };
  return source.split('\n').map(line).join('\n');
}
