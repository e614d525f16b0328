/** What holds for the form of the sources, most of all of `limiter/`, `redis/` and `admission/`, where no rule of the linter can say it. */
import { expect, test } from '@jest/globals';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { listOf, nameOf, nodeOf, nodesIn, treeOf, type Node } from '../../scripts/syntax.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const read = (file: string): string => readFileSync(`${root}${file}`, 'utf8');
const filesUnder = (folder: string): string[] =>
  readdirSync(`${root}${folder}`, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|lua|js)$/.test(name))
    .map((name) => `${folder}/${name}`);

/** Where ids of each kind are coined, and where they come in from Redis. */
const idMakers: Readonly<Record<string, readonly string[]>> = {
  bucketKey: ['journey/prepare', 'limiter/redis/protocol/message-codec', 'limiter/redis/quotas'],
  laneKey: ['journey/prepare', 'limiter/failover/unreported-usage', 'limiter/redis/protocol/message-codec'],
  ticketId: ['journey/prepare', 'limiter/failover/unreported-usage', 'limiter/redis/protocol/message-codec'],
  leaseToken: [
    'limiter/policy/grant.policy',
    'limiter/redis/protocol/message-codec',
    'limiter/redis/protocol/reply-codec',
  ],
  ceilingKey: ['journey/prepare', 'limiter/redis/protocol/message-codec'],
  replicaId: ['limiter/embedded/limiter', 'limiter/redis/presence'],
};

test.each(Object.keys(idMakers))('a plain string becomes an id by %s in a few places only', (maker) => {
  const call = new RegExp(`(?<![\\w.])${maker}\\(`);
  const found = filesUnder('src').filter((file) => file !== 'src/ids.ts' && call.test(read(file)));
  const files = found.map((file) => file.replace(/^src\/|\.ts$/g, ''));
  expect(files.toSorted()).toEqual(idMakers[maker]);
});

test('no source makes an id by a cast', () => {
  const cast = /\bas (BucketKey|LaneKey|TicketId|LeaseToken|CeilingKey|ReplicaId)\b/;
  expect(filesUnder('src').filter((file) => file !== 'src/ids.ts' && cast.test(read(file)))).toEqual([]);
});

function isBoolean(value: unknown): boolean {
  const type = nodeOf(value);
  if (type === null) return false;
  if (type['type'] === 'TsTypeAnnotation') return isBoolean(type['typeAnnotation']);
  if (type['type'] === 'TsUnionType') return listOf(type['types']).some(isBoolean);
  return type['kind'] === 'boolean' || nodeOf(type['literal'])?.['type'] === 'BooleanLiteral';
}

const isFlag = (member: Node): boolean =>
  isBoolean(member['typeAnnotation']) || nodeOf(member['value'])?.['type'] === 'BooleanLiteral';

/** Fields of an object's type or of a class that are true or false. */
function flagsOf(node: Node): readonly string[] {
  const isType = node['type'] === 'TsTypeLiteral';
  if (!isType && node['type'] !== 'TsInterfaceBody' && node['type'] !== 'ClassDeclaration') return [];
  const fields = ['TsPropertySignature', 'ClassProperty', 'PrivateProperty'];
  const members = listOf(isType ? node['members'] : node['body']);
  return members.filter((one) => fields.includes(String(one['type'])) && isFlag(one)).map(nameOf);
}

/** Functions and methods with more positional parameters than three. */
const hasManyParameters = (node: Node): boolean => listOf(node['params']).length > 3;

function badFormOf(source: string): readonly string[] {
  return [...nodesIn(treeOf(source))].flatMap((node) => {
    const flags = flagsOf(node);
    return [
      ...(flags.length > 2 ? [`flags ${flags.join(', ')}`] : []),
      ...(hasManyParameters(node) ? [`parameters of ${nameOf(node) || 'a function'}`] : []),
    ];
  });
}

/** The middle of the product: a call's way from its lane to Redis and back. */
const ownFiles = ['src/limiter', 'src/redis', 'src/admission'].flatMap(filesUnder);
const lengthOf = (file: string): number => read(file).split('\n').length - 1;
/** The library calls these with positional parameters. */
const ofLibraries = ['src/limiter/redis/sliding-log.ts: parameters of a function'];

test('limiter, redis and admission have no function with more than three parameters, no object with more than two flags', () => {
  const found = ownFiles
    .filter((file) => file.endsWith('.ts'))
    .flatMap((file) => badFormOf(read(file)).map((what) => `${file}: ${what}`));
  expect(found).toEqual(ofLibraries);
});

test.each([
  ['parameters of f', 'function f(a: number, b: number, c: number, d: number) {}'],
  ['parameters of a function', 'const f = (a: number, b: number, c: number, d: number) => a;'],
  ['flags a, b, c', 'interface I { a: boolean; readonly b?: boolean; c: boolean | null }'],
  ['flags a, b, #c', 'class K { a = true; b: boolean; #c = false; d = 1 }'],
])('the form check reports "%s" in source that has them', (what, source) => {
  expect(badFormOf(source)).toEqual([what.replace('#', '')]);
});

test('no file of the product has more than 250 lines', () => {
  expect(filesUnder('src').filter((file) => lengthOf(file) > 250)).toEqual([]);
});

test('half of the files of limiter, redis and admission have at most 90 lines', () => {
  const code = ownFiles.filter((file) => file.endsWith('.ts')).map(lengthOf);
  const median = code.toSorted((a, b) => a - b)[Math.floor(code.length / 2)];
  expect(median).toBeLessThanOrEqual(90);
});
