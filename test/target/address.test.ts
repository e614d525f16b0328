import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { addressCheck, allowsInside, isPublicAddress, isRange } from '../../src/target/address.policy.ts';

/** First and last address of each denied range, and the public neighbours where there are any. */
const ranges: readonly (readonly [string, string, string, string | null, string | null])[] = [
  ['0/8', '0.0.0.0', '0.255.255.255', null, '1.0.0.0'],
  ['10/8', '10.0.0.0', '10.255.255.255', '9.255.255.255', '11.0.0.0'],
  ['100.64/10', '100.64.0.0', '100.127.255.255', '100.63.255.255', '100.128.0.0'],
  ['127/8', '127.0.0.0', '127.255.255.255', '126.255.255.255', '128.0.0.0'],
  ['169.254/16', '169.254.0.0', '169.254.255.255', '169.253.255.255', '169.255.0.0'],
  ['172.16/12', '172.16.0.0', '172.31.255.255', '172.15.255.255', '172.32.0.0'],
  ['192.0.0/24', '192.0.0.0', '192.0.0.255', '191.255.255.255', '192.0.1.0'],
  ['192.0.2/24', '192.0.2.0', '192.0.2.255', '192.0.1.255', '192.0.3.0'],
  ['192.88.99/24', '192.88.99.0', '192.88.99.255', '192.88.98.255', '192.88.100.0'],
  ['192.168/16', '192.168.0.0', '192.168.255.255', '192.167.255.255', '192.169.0.0'],
  ['198.18/15', '198.18.0.0', '198.19.255.255', '198.17.255.255', '198.20.0.0'],
  ['198.51.100/24', '198.51.100.0', '198.51.100.255', '198.51.99.255', '198.51.101.0'],
  ['203.0.113/24', '203.0.113.0', '203.0.113.255', '203.0.112.255', '203.0.114.0'],
  ['224/4', '224.0.0.0', '239.255.255.255', '223.255.255.255', null],
  ['240/4', '240.0.0.0', '255.255.255.255', null, null],
  ['Azure host', '168.63.129.16', '168.63.129.16', '168.63.129.15', '168.63.129.17'],
  ['::/96', '::', '::ffff:ffff', null, null],
  ['mapped loopback', '::ffff:127.0.0.0', '::ffff:127.255.255.255', '::ffff:126.255.255.255', '::ffff:128.0.0.0'],
  ['mapped Azure', '::ffff:a83f:8110', '::ffff:a83f:8110', '::ffff:a83f:810f', '::ffff:a83f:8111'],
  ['64:ff9b::/96', '64:ff9b::', '64:ff9b::ffff:ffff', null, null],
  ['64:ff9b:1::/48', '64:ff9b:1::', '64:ff9b:1:ffff:ffff:ffff:ffff:ffff', null, null],
  ['100::/64', '100::', '100::ffff:ffff:ffff:ffff', null, null],
  ['below 2000::/3', '1000::', '1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, '2000::'],
  ['2001::/23', '2001::', '2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff', '2000:ffff::', '2001:200::'],
  ['2001:db8::/32', '2001:db8::', '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff', '2001:db7:ffff::', '2001:db9::'],
  ['2002::/16', '2002::', '2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff', '2001:ffff::', '2003::'],
  ['3fff::/20', '3fff::', '3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff', '3ffe:ffff::', '3fff:1000::'],
  ['above 2000::/3', '4000::', '5eff:ffff::', '3fff:ffff::', null],
  ['5f00::/16', '5f00::', '5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, null],
  ['fc00::/7', 'fc00::', 'fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, null],
  ['fe80::/10', 'fe80::', 'febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, null],
  ['fec0::/10', 'fec0::', 'feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, null],
  ['ff00::/8', 'ff00::', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', null, null],
]; // prettier-ignore

const words = (text: string): string[] => text.trim().split(/\s+/);

describe('a public address', () => {
  test.each(ranges)('is none of %s, from first to last and no further', (_, first, last, below, above) => {
    expect([isPublicAddress(first), isPublicAddress(last)]).toEqual([false, false]);
    for (const neighbour of [below, above])
      if (neighbour !== null) expect([neighbour, isPublicAddress(neighbour)]).toEqual([neighbour, true]);
  });

  test.each(words('1.1.1.1 8.8.8.8 2606:4700:4700::1111 2a00:1450:4001::200e ::ffff:8.8.8.8'))(
    'is %s',
    (address) => expect(isPublicAddress(address)).toBe(true),
  );

  const embedding = `::127.0.0.1 ::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::8.8.8.8 2002:7f00:1:: 169.254.169.254 169.254.170.2 fd00:ec2::254
    ::ffff:0:127.0.0.1 ::ffff:a9fe:a9fe`;
  test.each(words(embedding))('is not %s, which embeds one that is not', (address) =>
    expect(isPublicAddress(address)).toBe(false),
  );

  const unusual = `localhost 1 8.8 8.8.8 0x8.8.8.8 010.8.8.8 8.8.8.8. 8.8.8.8:80 [2606::1] 2606:4700::1%eth0 2606:::1 8.8.8.256`;
  test.each(['', ' 8.8.8.8', ...words(unusual)])('is not %j, which is not in standard notation', (text) =>
    expect(isPublicAddress(text)).toBe(false),
  );

  test('is judged like the one inside it where it is IPv4-mapped, and no text makes the judgement throw', () => {
    fc.assert(
      fc.property(fc.ipV4(), (address) => isPublicAddress(`::ffff:${address}`) === isPublicAddress(address)),
    );
    const texts = fc.oneof(fc.string(), fc.ipV6());
    fc.assert(fc.property(texts, (text) => typeof isPublicAddress(text) === 'boolean'));
  });
});

describe('addresses inside a network', () => {
  const inside = `127.0.0.1 ::1 10.0.0.1 172.31.255.255 192.168.1.1 100.64.0.1 fd12:3456::1 ::ffff:10.0.0.1 8.8.8.8`;
  const never = `169.254.169.254 169.254.0.0 169.254.255.255 ::ffff:169.254.169.254 fe80::1 fe80::1%eth0 fd00:ec2::254 fd00::1%eth0
    100.100.100.200 168.63.129.16 192.0.0.192 0.0.0.0 :: 224.0.0.1 255.255.255.255 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 localhost 0x7f000001`;
  const named = ['10.20.0.0/16', '127.0.0.1', 'fd12:3456::/32', '100.100.0.0/16'];
  const opened = `10.20.0.0 10.20.255.255 ::ffff:10.20.3.4 127.0.0.1 fd12:3456::9 100.100.1.1 8.8.8.8`;
  const closed = `10.19.255.255 10.21.0.0 127.0.0.2 ::1 fd12:3457::1 192.168.1.1 169.254.169.254 100.100.100.200`;
  const wide = ['0.0.0.0/0', '::/0', '169.254.0.0/16'];
  test.each([
    ['an upstream may be at', true, inside, true],
    ['an upstream is never at', true, never, false],
    ['named ranges open', named, opened, true],
    ['named ranges leave closed', named, closed, false],
    ['ranges, however wide, open', wide, '10.0.0.1 fd00::1', true],
    ['ranges, however wide, leave closed', wide, '169.254.1.1 169.254.169.254 168.63.129.16 0.0.0.0', false],
    ['an empty list leaves closed', [], '10.0.0.1', false],
    ['a switch that is off leaves closed', false, '10.0.0.1', false],
  ])('%s (%j)', (_, allowed, addresses, isAllowed) => {
    const check = addressCheck(allowed);
    for (const address of words(addresses)) expect([address, check(address)]).toEqual([address, isAllowed]);
    expect(allowsInside(allowed)).toBe(allowed !== false && (allowed === true || allowed.length > 0));
  });

  test.each([
    ['10.0.0.0/8', true],
    ['10.1.2.3', true],
    ['fd00::/8', true],
    ['::1', true],
    ['10.0.0.0/33', false],
    ['10.0.0/8', false],
    ['localhost', false],
    ['', false],
  ])('are named by a range: %s → %s', (text, expected) => expect(isRange(text)).toBe(expected));
});
