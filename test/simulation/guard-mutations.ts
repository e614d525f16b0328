/**
 * Which line keeps the guards: one-line changes of what refuses requests (15) and connections (16), each of which a test in
 * `test/ingress/`, `test/target/` or `test/wire/` must find.
 */
import { row, type Mutation } from './mutations.ts';

const guard = 'src/ingress/guard.policy.ts';
const framing = 'src/ingress/framing.policy.ts';
const address = 'src/target/address.policy.ts';
const listeners = 'src/dispatch/agents.ts';
const target = 'src/target/target.policy.ts';

/** The row, and why nothing finds it. */
const kept = (survives: string, mutation: Mutation): Mutation => ({ ...mutation, survives });

const requestGuard: readonly Mutation[] = [
  row('15', 'guard: two Authorization fields pass', guard, "  'authorization',\n", ''),
  row('15', 'guard: two Sluice-Key fields pass', guard, "  'sluice-key',\n", ''),
  row(
    '15',
    'guard: two Sluice-Upstream-Authorization fields pass',
    guard,
    "  'sluice-upstream-authorization',\n",
    '',
  ),
  row('15', 'guard: two Content-Length fields pass', guard, "  'content-length',\n", ''),
  row('15', 'guard: two Host fields pass', guard, "name === 'host' || ", ''),
  row('15', 'guard: two Transfer-Encoding fields pass', guard, "name === 'transfer-encoding' || ", ''),
  row('15', 'guard: two injected fields pass', guard, ' || credentialFields.has(name)', ''),
  row('15', 'guard: a name in capitals is another field', guard, "?? '').toLowerCase();", "?? '');"),
  row(
    '15',
    'guard: any version of HTTP passes',
    guard,
    "if (head.httpVersion !== '1.1' && head.httpVersion !== '1.0')",
    'if (false)',
  ),
  row('15', 'guard: TRACE passes', guard, "head.method === 'TRACE' || ", ''),
  row('15', 'guard: CONNECT passes', guard, " || head.method === 'CONNECT'", ''),
  row('15', 'guard: any request target passes', guard, 'if (!originForm.test(head.url))', 'if (false)'),
  row('15', 'guard: a fragment passes', guard, '\\x21\\x22\\x24-\\x7e', '\\x21-\\x7e'),
  row('15', 'guard: any Host passes', guard, 'return hostForm.test(value)', "return value !== ''"),
  row(
    '15',
    'guard: a transfer coding of HTTP/1.0 passes',
    guard,
    "if (head.httpVersion === '1.0') return invalid('HTTP/1.0 has no transfer codings.');",
    '',
  ),
  row(
    '15',
    'guard: codings before chunked pass',
    guard,
    "value.toLowerCase() === 'chunked'",
    "value.toLowerCase().endsWith('chunked')",
  ),
  row(
    '15',
    'guard: a Connection option names any field away',
    guard,
    'every((option) => knownConnectionOptions.has(option))',
    'every(() => true)',
  ),
  row(
    '15',
    'guard: any protocol may be switched to',
    guard,
    "every((protocol) => protocol === 'h2c' || protocol === '')",
    'every(() => true)',
  ),
  row(
    '15',
    'guard: any expectation passes',
    guard,
    "every((member) => member === '100-continue')",
    'every(() => true)',
  ),
  row(
    '15',
    'guard: HTTP/1.1 without Host passes',
    guard,
    "if (!seen.has('host') && head.httpVersion === '1.1')",
    'if (false)',
  ),
  row('15', 'framing: 1xx is a response', framing, 'status < 200', 'status < 100'),
  row('15', 'framing: statuses over 599 pass', framing, ' || status > 599', ''),
  row('15', 'framing: any length is announced', framing, 'digits.test(value) ? value : null', 'value'),
  row('15', 'framing: framing fields are copied', framing, '!framingFields.has(lower) && ', ''),
  row('15', 'framing: fields are there twice', framing, ' && !replaced.includes(lower)', ''),
  row('15', 'framing: 304 has a body', framing, ' || status === 304;', ';'),
  row('15', 'framing: HEAD has a body', framing, "method === 'HEAD' || ", ''),
  row('15', 'framing: 204 has a length', framing, 'if (status === 204)', 'if (false)'),
  row('15', 'framing: 205 has a body', framing, 'if (status === 205)', 'if (false)'),
  row(
    '15',
    'framing: the length of the upstream stands for another body',
    framing,
    "if (!asHead && body !== 'stream') declared = String(body);",
    '',
  ),
  row(
    '15',
    'framing: HEAD announces an empty body',
    framing,
    "!asHead && body !== 'stream'",
    "body !== 'stream'",
  ),
];

const egressGuard: readonly Mutation[] = [
  row('16', 'egress: a zone passes', address, "if (address.includes('%')) return false;", ''),
  row('16', 'egress: unassigned IPv6 passes', address, 'address.match(globalUnicast) &&', ''),
  kept(
    'the library calls these ranges something else than unicast, too, in this release',
    row(
      '16',
      'egress: special ranges of IPv6 pass',
      address,
      '!specialInsideGlobal.some((range) => address.match(range)) &&',
      '',
    ),
  ),
  row(
    '16',
    'egress: special ranges of IPv4 pass',
    address,
    "return address.range() === 'unicast' && address.toString()",
    'return address.toString()',
  ),
  row(
    '16',
    'egress: mapped addresses are not read',
    address,
    'if (address.isIPv4MappedAddress())',
    'if (false)',
  ),
  row('16', 'egress: the host agent is public', address, ' && address.toString() !== azureHostAgent', ''),
  row(
    '16',
    'egress: short forms of IPv4 are addresses',
    address,
    'if (ipaddr.IPv4.isValidFourPartDecimal(address)) return isPublicV4',
    'if (ipaddr.IPv4.isValid(address)) return isPublicV4',
  ),
  row(
    '16',
    'egress: link-local is inside',
    address,
    "'private', 'loopback'",
    "'private', 'linkLocal', 'loopback'",
  ),
  row('16', 'egress: metadata services are upstreams', address, ' || metadata.has(address.toString())', ''),
  row('16', 'egress: the metadata of Alibaba is an upstream', address, "'100.100.100.200', ", ''),
  kept(
    'the range of the address is reserved, which is not inside either',
    row('16', 'egress: the metadata of Oracle is an upstream', address, "'192.0.0.192', ", ''),
  ),
  row('16', 'egress: the metadata of AWS over IPv6 is an upstream', address, ", 'fd00:ec2::254'", ''),
  row(
    '16',
    'egress: named ranges open all',
    address,
    'return ranges === null || ',
    'return ranges !== undefined || ',
  ),
  row('16', 'egress: no ranges allow all', address, 'allowed.length > 0;', 'true;'),
  row(
    '16',
    'egress: inside is open without leave',
    address,
    'if (!allowsInside(allowed)) return isPublicAddress;',
    '',
  ),
  row('16', 'egress: IPv4 is compared with IPv6', address, 'address.kind() === from.kind() && ', ''),
  row('16', 'egress: more bits than an address has', address, 'bits <= whole ?', 'bits <= 128 ?'),
  row('16', 'egress: ranges may begin anywhere', address, "return 'host_bits';", 'return null;'),
  row('16', 'egress: ranges may be public', address, "isInside ? null : 'not_inside'", 'null'),
  row('16', 'egress: ranges may be wider than inside', address, 'bits >= known[1] && ', ''),
  row('16', 'egress: a zone inside passes', address, "if (address.includes('%')) return null;", ''),
  row(
    '16',
    'egress: mapped addresses inside are not read',
    address,
    'ipaddr.process(address)',
    'ipaddr.parse(address)',
  ),
  row('16', 'egress: any port is our own', listeners, 'own.port === port && ', ''),
  row('16', 'egress: 0.0.0.0 leads back', listeners, 'isUnspecified(address) || isSame', 'isSame'),
  row('16', 'egress: our own address leads back', listeners, ' || isSameAddress(address, listening)', ''),
  row('16', 'egress: one address is all', listeners, 'if (!isUnspecified(listening)) return false;', ''),
  row('16', 'egress: loopback leads back', listeners, 'if (isLoopbackAddress(address)) return true;', ''),
  row(
    '16',
    'egress: an interface leads back',
    listeners,
    'own.some((each) => isSameAddress(address, each.address))',
    'own.length < 0',
  ),
];

const targets: readonly Mutation[] = [
  row(
    '16',
    'target: one byte too long',
    target,
    'target.length > maxTargetLength',
    'target.length > maxTargetLength + 1',
  ),
  row('16', 'target: a backslash passes', target, '[^\\x21-\\x7e]|\\\\/', '[^\\x21-\\x7e]/'),
  row('16', 'target: control characters pass', target, '[^\\x21-\\x7e]', '[^\\x00-\\x7e]'),
  row('16', 'target: other schemes pass', target, 'if (!/^https?$/i.test(scheme)) return forbidden;', ''),
  row('16', 'target: user information passes', target, "if (authority.includes('@'))", 'if (false)'),
  row('16', 'target: a fragment passes', target, "if (rest.includes('#'))", 'if (false)'),
  row(
    '16',
    'target: dot segments pass',
    target,
    'some((segment) => dotSegment.test(segment))',
    'some(() => false)',
  ),
  row('16', 'target: encoded dots pass', target, '(?:\\.|%2e){1,2}', '(?:\\.){1,2}'),
  row('16', 'target: a host ends with a dot', target, "if (parsed.hostname.endsWith('.'))", 'if (false)'),
  row(
    '16',
    'target: a host has several spellings',
    target,
    'if (hostAsWritten(authority) !== parsed.hostname)',
    'if (false)',
  ),
  row('16', 'target: further parameters are dropped', target, 'if (parameters.length > 1)', 'if (false)'),
  row(
    '16',
    'target: it is decoded twice',
    target,
    'return decodeURIComponent(text);',
    'return decodeURIComponent(decodeURIComponent(text));',
  ),
  kept(
    'the host as written is compared with the parsed one, and they differ',
    row('16', 'target: anything follows a host', target, "|| outsideBrackets.includes(':')", ''),
  ),
  row('16', 'target: a port begins with zero', target, '[1-9]\\d{0,4}', '\\d{1,5}'),
  row(
    '16',
    'target: any upstream is allowed',
    target,
    'upstream === undefined || !allowed(upstream)',
    'upstream === undefined',
  ),
  row(
    '16',
    'target: a path leads to another upstream',
    target,
    'candidate === upstream;',
    'candidate !== undefined;',
  ),
];

export const guardMutations: readonly Mutation[] = [...requestGuard, ...egressGuard, ...targets];
