import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { drifted, files } from '../../scripts/grafana/generate.ts';
import { driven } from './drive.ts';

const root = new URL('../../', import.meta.url);
const rules = ['sluice.rules.yaml', 'sluice.alerts.yaml'].map((name) => ({
  name,
  text: readFileSync(new URL(`grafana/rules/${name}`, root), 'utf8'),
}));

interface Rule {
  readonly alert?: string;
  readonly record?: string;
  readonly annotations?: { readonly runbook_url: string };
}
const allRules = rules.flatMap(({ text }) =>
  (parse(text) as { groups: { rules: Rule[] }[] }).groups.flatMap((group) => group.rules),
);

describe('dashboards and rules', () => {
  test('the checked-in dashboards are what their code writes', () => {
    expect(drifted()).toEqual([]);
  });

  test('ask only for metrics and labels that a replica has', async () => {
    const scrape = await driven().scrape();
    const published = new Set([...scrape.matchAll(/^# TYPE (\S+)/gm)].map((m) => m[1]));
    const recorded = new Set(allRules.map(({ record }) => record));
    const texts = [
      ...files().map(([, text]) => text.replaceAll('\\"', '"')),
      ...rules.map(({ text }) => text),
    ];
    const used = new Set(
      texts.flatMap((text) => [...text.matchAll(/\bsluice[_:][a-z0-9_:]+/g)].map((m) => m[0])),
    );
    const unknown = [...used].filter((name) => {
      const family = name.replace(/_(bucket|count|sum)$/, '');
      return !published.has(name) && !published.has(family) && !recorded.has(name);
    });
    expect(unknown).toEqual([]);
    expect(used.size).toBeGreaterThan(20);
  });

  test('every alert has an entry of its own in the page of symptoms, and a unit test', () => {
    const alerts = allRules.filter(({ alert }) => alert !== undefined);
    const tested = readFileSync(new URL('grafana/rules/sluice.test.yaml', root), 'utf8');
    const page = readFileSync(new URL('docs/operate/troubleshoot.md', root), 'utf8');
    for (const { alert, annotations } of alerts) {
      expect(annotations?.runbook_url).toBe(`docs/operate/troubleshoot.md#${alert?.toLowerCase()}`);
      expect(tested).toContain(`alertname: ${alert}`);
    }
    const entries = [...page.matchAll(/^### (Sluice\w+)$/gm)].map(([, name]) => name);
    expect(new Set(entries)).toEqual(new Set(alerts.map(({ alert }) => alert)));
    expect(entries).toHaveLength(alerts.length);
  });
});
