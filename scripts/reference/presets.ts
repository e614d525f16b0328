/** The page of presets: a row for each API that `speaks` knows by name. */
import { presetNames, presetOf } from '../../src/config/speaks.ts';

/** The text of docs/reference/presets.md. */
export function presetsPage(): string {
  const rows = presetNames.map((name) => {
    const { title, source, counts, missing } = presetOf(name);
    return `| [\`${name}\`](../../presets/${name}.yaml) | [${title}](${source}) | ${counts} | ${missing ?? ''} |`;
  });
  return `# Presets

Write a preset's name into \`speaks\` of an upstream: \`speaks: github\`. Limits that depend on a plan are the smallest that the provider
documents; raise them with \`speaks: { preset: hubspot, windows: [...] }\` ([its parts](../operate/any-api.md#the-parts)).
Shopify needs no preset but \`kind: commerce\`, OpenAI, Anthropic, Gemini and their like \`kind: language-model\`.

| preset | API | counts | not covered |
|---|---|---|---|
${rows.join('\n')}
`;
}
