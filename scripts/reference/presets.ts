/** The page of presets: a row for each API that `speaks` knows by name. */
import { presetNames } from '../../src/config/speaks.ts';
import { presetOf, type Preset } from '../../src/config/speaks.ts';

/** The text of docs/reference/presets.md. */
export function presetsPage(): string {
  const rows = presetNames.map((name) => {
    const { title, source, counts, missing, speaks } = presetOf(name);
    return `| \`${name}\` | [${title}](${source}) | ${counts} | ${windowsText(speaks)} | ${missing ?? ''} |`;
  });
  return `# Presets

Write a preset's name into \`speaks\` of an upstream: \`speaks: github\`. Limits that depend on a plan are the smallest that the provider
documents; raise them with \`speaks: { preset: hubspot, windows: [...] }\`. [Put any API behind Sluice](../operate/any-api.md) explains the parts.

| preset | API | counts | stated windows | not covered |
|---|---|---|---|---|
${rows.join('\n')}
`;
}

/** So many windows of single operations are shown one by one. */
const maxShown = 3;

function windowsText({ windows = [], maxInFlight, penaltySeconds }: Preset['speaks']): string {
  const ofOperations = windows.filter(({ calls }) => calls !== undefined);
  const isShort = ofOperations.length <= maxShown;
  return [
    ...windows.filter((window) => isShort || window.calls === undefined).map(windowText),
    ...(isShort ? [] : [`${ofOperations.length} for single operations`]),
    ...(maxInFlight === undefined ? [] : [`${maxInFlight} at once`]),
    ...(penaltySeconds === undefined ? [] : [`penalty ${penaltySeconds} s`]),
  ].join(', ');
}

function windowText({ requests, seconds, calls }: NonNullable<Preset['speaks']['windows']>[number]): string {
  const text = `${requests} in ${seconds} s`;
  return calls === undefined ? text : `${text} for ${calls.map(({ text }) => `\`${text}\``).join(', ')}`;
}
