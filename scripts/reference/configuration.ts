/** The page of the configuration: every key of the file with its type, default and meaning, read from its schema. */
import { z } from 'zod';
import { fileSchema } from '../../src/config/schema.ts';

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
  /** Takes effect at the next start. */
  readonly restart?: boolean;
}
interface Row {
  readonly key: string;
  readonly node: Node;
  readonly waitsForRestart: boolean;
}

/** Keys whose own keys another row or docs/operate/any-api.md describes. */
const ends = [/^speaks\.(fields|windows|permanentBy|expiredBy)$/];

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

function defaultText({ default: value }: Node): string {
  if (value === undefined || (typeof value === 'object' && value !== null && !Array.isArray(value)))
    return '';
  return `\`${JSON.stringify(value)}\``;
}

/** Rows of the keys below a node, each key once. */
function rowsOf(node: Node, prefix: string, waits: boolean): Row[] {
  const rows = new Map<string, Row>();
  for (const form of formsOf(node))
    for (const [name, child] of Object.entries(form.properties ?? {})) {
      const key = `${prefix}${name}`;
      if (rows.has(key)) continue;
      const waitsForRestart = waits || child.restart === true;
      rows.set(key, { key, node: child, waitsForRestart });
      for (const row of below(child, key, waitsForRestart)) if (!rows.has(row.key)) rows.set(row.key, row);
    }
  return [...rows.values()];
}

/** Rows of the keys below a key. Entries of a map by upstream have none of their own: the map's row says what they are. */
function below(node: Node, key: string, waits: boolean): Row[] {
  return ends.some((end) => end.test(key)) ? [] : rowsOf(node, `${key}.`, waits);
}

const cell = (text: string): string =>
  text.replaceAll('|', '\\|').replaceAll('\n', ' ').replaceAll('<', '&lt;');

function sectionText(name: string, section: Node): string {
  const entry = section.additionalProperties;
  const isMap = entry !== undefined && entry !== false;
  const all = rowsOf(isMap ? entry : section, '', section.restart === true);
  const isBeside = ({ key, node }: Row): boolean =>
    all.some(
      ({ key: other, node: limit }) => other === `limits.${key}` && limit.description === node.description,
    );
  const beside = all.filter(isBeside).map(({ key }) => `\`${key}\``);
  const rows = all
    .filter((row) => !isBeside(row))
    .map(({ key, node, waitsForRestart }) => {
      const words = `${node.description ?? ''}${waitsForRestart ? ' **Restart.**' : ''}`.trim();
      return `| \`${key}\` | ${typeText(node)} | ${defaultText(node)} | ${cell(words)} |`;
    });
  return [
    `## ${name}`,
    '',
    ...(section.description === undefined ? [] : [section.description, '']),
    ...(isMap ? [`Keys of each entry of \`${name}\`:`, ''] : []),
    '| key | type | default | what |',
    '|---|---|---|---|',
    ...rows,
    '',
    ...(beside.length === 0
      ? []
      : [`${beside.join(', ')} of \`limits\` may stand directly on the upstream instead.`, '']),
  ].join('\n');
}

/** The text of docs/reference/configuration.md. */
export function configurationPage(): string {
  const schema = z.toJSONSchema(fileSchema, { target: 'draft-7', io: 'input' }) as Node;
  const sections = Object.entries(schema.properties ?? {}).map(([name, section]) =>
    sectionText(name, section),
  );
  return `# Configuration

One YAML file, \`sluice.yaml\` unless \`--config\` says otherwise. Only \`upstreams\` and \`workspaces\` are required; unknown keys stop the start.

- \`\${NAME}\` is a variable of the environment or of \`.env\` beside the file; \`$\${\` is a literal \`\${\`.
- Times are seconds unless the key ends in \`Ms\`; a unit may follow: \`90\`, \`90s\`, \`5m\`, \`2h\`. \`none\` means no limit.
- Sluice [reloads](../operate/day-2.md#reload) the file when it changes. A key with **Restart** takes effect at the next start.
- [sluice.example.yaml](../../sluice.example.yaml) shows every section. Editors complete and check the file with
  [the JSON Schema](../../schema/sluice.schema.json); \`sluice check\` finds every problem with its line.

${sections.join('\n')}`;
}
