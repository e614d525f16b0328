/** The page of the configuration: every key of the file with its type, default and meaning, read from its schema. */
import { z } from 'zod';
import { keysAtOnce } from '../../src/config/server.ts';
import { fileSchema, sectionsAtStart } from '../../src/config/settings.ts';

interface Node {
  readonly type?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly enum?: readonly string[];
  readonly const?: string;
  readonly properties?: Readonly<Record<string, Node>>;
  readonly additionalProperties?: Node | false;
  readonly items?: Node;
  readonly anyOf?: readonly Node[];
}
interface Row {
  readonly key: string;
  readonly node: Node;
}

/** A key whose own keys docs/operate/any-api.md describes. */
const end = 'speaks';

/** The node and what it may be instead: choices, and the items of a list. */
const formsOf = (node: Node): readonly Node[] => [
  node,
  ...(node.anyOf ?? []).flatMap(formsOf),
  ...(node.items === undefined ? [] : formsOf(node.items)),
];

/** A word for each thing that the value may be. */
function typeText(node: Node): string {
  const choices = formsOf(node).filter(({ type }) => type !== 'string' || node.type !== 'array');
  const words = choices.flatMap((form) => {
    if (form.enum !== undefined)
      return form.enum.length > 8 ? ['name'] : form.enum.map((value) => `\`${value}\``);
    if (form.const !== undefined) return [`\`${form.const}\``];
    const { type } = form;
    return type === undefined
      ? []
      : [{ string: 'text', integer: 'number', array: 'list', object: 'map' }[type] ?? type];
  });
  return [...new Set(words)].slice(0, 8).join(' ');
}

/** The type, and the default behind it. */
function valueText(node: Node): string {
  const { default: value } = node;
  const isMap = typeof value === 'object' && value !== null && !Array.isArray(value);
  return value === undefined || isMap ? typeText(node) : `${typeText(node)}, \`${JSON.stringify(value)}\``;
}

/** Rows of the keys below a node, each key once. */
function rowsOf(node: Node, prefix: string): Row[] {
  const rows = new Map<string, Row>();
  for (const form of formsOf(node))
    for (const [name, child] of Object.entries(form.properties ?? {})) {
      const key = `${prefix}${name}`;
      if (rows.has(key)) continue;
      rows.set(key, { key, node: child });
      for (const row of below(child, key)) if (!rows.has(row.key)) rows.set(row.key, row);
    }
  return [...rows.values()];
}

/** Rows of the keys below a key. Entries of a map by upstream have none of their own: the map's row says what they are. */
const below = (node: Node, key: string): Row[] => (key === end ? [] : rowsOf(node, `${key}.`));

const cell = (text: string): string =>
  text.replaceAll('|', '\\|').replaceAll('\n', ' ').replaceAll('<', '&lt;');

/** Keys as words of a sentence. */
const named = (rows: readonly Row[]): string => rows.map(({ key }) => `\`${key}\``).join(', ');

/** Descriptions of the keys of `server`, some of which `limits` repeats for one upstream. */
type Descriptions = ReadonlyMap<string, string | undefined>;

function sectionText(name: string, section: Node, ofServer: Descriptions): string {
  const entry = section.additionalProperties;
  const isMap = entry !== undefined && entry !== false;
  const all = rowsOf(isMap ? entry : section, '');
  const described = new Map(all.map(({ key, node }) => [key, node.description]));
  const isBeside = ({ key, node }: Row): boolean =>
    node.description !== undefined && described.get(`limits.${key}`) === node.description;
  const isOfServer = ({ key, node }: Row): boolean =>
    key.startsWith('limits.') && ofServer.get(key.slice('limits.'.length)) === node.description;
  const [beside, likeServer] = [all.filter(isBeside), all.filter(isOfServer)];
  const shown = all.filter((row) => !isBeside(row) && !isOfServer(row));
  const isAtStart = (sectionsAtStart as readonly string[]).includes(name);
  const reloads = shown.filter(({ key }) => keysAtOnce.includes(key));
  const but = reloads.length === 0 ? '' : ` but ${named(reloads)}`;
  const rows = shown.map(({ key, node }) => {
    const words = (node.description ?? '').replace(/ "none" = no [a-z]+\./, '');
    const parts = key === end ? ' [Its parts](../operate/any-api.md#the-parts).' : '';
    return `| \`${key}\` | ${valueText(node)} | ${cell(words)}${parts} |`;
  });
  const text = [
    section.description ?? '',
    isMap ? `Keys of each entry of \`${name}\`:` : '',
    isAtStart ? `**At the next start**: all keys${but}.` : '',
  ].filter((line) => line !== '');
  const paragraphs = [
    ...(text.length === 0 ? [] : [text.join(' ')]),
    ['| key | type, default | what |', '|---|---|---|', ...rows].join('\n'),
    ...(likeServer.length === 0
      ? []
      : [`${named(likeServer)}: as in [server](#server), for this upstream alone.`]),
    ...(beside.length === 0
      ? []
      : [`${named(beside)} of \`limits\` may stand directly on the upstream instead.`]),
  ];
  return `## ${name}\n\n${paragraphs.join('\n\n')}\n`;
}

/** The text of docs/reference/configuration.md. */
export function configurationPage(): string {
  const schema = z.toJSONSchema(fileSchema, { target: 'draft-7', io: 'input' }) as Node;
  const keys = Object.entries(schema.properties?.['server']?.properties ?? {});
  const ofServer = new Map(keys.map(([key, node]) => [key, node.description]));
  const sections = Object.entries(schema.properties ?? {}).map(([name, section]) =>
    sectionText(name, section, ofServer),
  );
  return `# Configuration

One YAML file, \`sluice.yaml\` unless \`--config\` says otherwise. Only \`upstreams\` and \`workspaces\` are required; unknown keys stop the start.

- \`\${NAME}\` is a variable of the environment or of \`.env\` beside the file; \`$\${\` is a literal \`\${\`.
- Times are seconds unless the key ends in \`Ms\`; a unit may follow: \`90\`, \`90s\`, \`5m\`, \`2h\`. \`none\` means no limit.
- Sluice [reloads](../operate/day-2.md#reload) the file when it changes; some keys wait for the next start.
- [sluice.example.yaml](../../sluice.example.yaml) shows every section. Editors complete and check the file with
  [the JSON Schema](../../schema/sluice.schema.json); \`sluice check\` finds every problem with its line.

${sections.join('\n')}`;
}
