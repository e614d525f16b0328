/** The page of metrics: every instrument with its type, labels and help, and the values of labels that are fixed. */
import {
  credentialFaults,
  failureReasons,
  heldByReasons,
  overloadBounds,
  refusals,
} from '../../src/errors.ts';
import { described } from '../../src/telemetry/metrics.ts';

const list = (values: readonly string[]): string => values.map((value) => `\`${value}\``).join(' ');

/** Codes of refusals for lack of room or time. */
const shedCodes = Object.entries(refusals).flatMap(([code, { family }]) => (family === 'shed' ? [code] : []));

/** The text of docs/reference/metrics.md. */
export function metricsPage(): string {
  const rows = described.map(({ type, name, labels, help }) => {
    const by = labels === '' ? '' : ` by ${labels.replaceAll(' ', ', ')}`;
    return `| \`${name}\` | ${type}${by} | ${help} |`;
  });
  return `# Metrics

\`/metrics\` of the admin port, as Prometheus text, or OpenMetrics on request. Each replica reports itself. \`workspace\` is the keyed label. Node's
own \`process_*\` and \`nodejs_*\` are there, too. [Monitor](../operate/monitor.md) says how to read them.

| metric | type, labels | what |
|---|---|---|
${rows.join('\n')}

| label | values |
|---|---|
| \`outcome\` of calls | \`ok\` \`upstream_error\` \`throttled\` \`shed\` \`rejected\` \`client_gone\` \`failed\` |
| \`outcome\` of renewals | \`renewed\` \`shared\` ${list(credentialFaults)} |
| \`kind\` of throttles | \`rate\` \`permanent\` |
| \`reason\` of \`sluice_shed_total\` | ${list(shedCodes)} |
| \`reason\` of failures | ${list(failureReasons)} |
| \`held_by\` | ${list(heldByReasons)} |
| \`bound\` | ${list(overloadBounds)} |
| \`mode\` | \`redis\` \`memory\` \`local\` \`deny\` |
`;
}
