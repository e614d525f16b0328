import { describe, expect, test } from '@jest/globals';
import { addressCheck, allowsInside, isRange, isSameAddress } from '../../src/target/address.policy.ts';

const isPublicOrInside = addressCheck(true);

describe('an upstream with allowPrivateAddresses', () => {
  test.each([
    '127.0.0.1',
    '::1',
    '10.0.0.1',
    '172.31.255.255',
    '192.168.1.1',
    '100.64.0.1',
    'fd12:3456::1',
    '::ffff:10.0.0.1',
    '8.8.8.8',
  ])('may be at %s', (address) => {
    expect(isPublicOrInside(address)).toBe(true);
  });

  test.each([
    '169.254.169.254',
    '169.254.0.0',
    '169.254.255.255',
    '::ffff:169.254.169.254',
    'fe80::1',
    'fe80::1%eth0',
    'fd00:ec2::254',
    '100.100.100.200',
    '168.63.129.16',
    '192.0.0.192',
    '0.0.0.0',
    '::',
    '224.0.0.1',
    '255.255.255.255',
    '64:ff9b::a9fe:a9fe',
    '2002:a9fe:a9fe::1',
    'localhost',
    '0x7f000001',
  ])('is never at %s', (address) => {
    expect(isPublicOrInside(address)).toBe(false);
  });
});

describe('named ranges', () => {
  const allowed = addressCheck(['10.20.0.0/16', '127.0.0.1', 'fd12:3456::/32', '100.100.0.0/16']);

  test.each([
    '10.20.0.0',
    '10.20.255.255',
    '::ffff:10.20.3.4',
    '127.0.0.1',
    'fd12:3456::9',
    '100.100.1.1',
    '8.8.8.8',
  ])('open %s', (address) => expect(allowed(address)).toBe(true));

  test.each([
    '10.19.255.255',
    '10.21.0.0',
    '127.0.0.2',
    '::1',
    'fd12:3457::1',
    '192.168.1.1',
    '169.254.169.254',
    '100.100.100.200',
  ])('leave %s closed', (address) => expect(allowed(address)).toBe(false));

  test('open no address when the list is empty or the switch is off', () => {
    expect(addressCheck([])('10.0.0.1')).toBe(false);
    expect(addressCheck(false)('10.0.0.1')).toBe(false);
    expect([allowsInside([]), allowsInside(false)]).toEqual([false, false]);
  });

  test('do not open an address with a zone', () => {
    expect(isPublicOrInside('fd00::1')).toBe(true);
    expect(isPublicOrInside('fd00::1%eth0')).toBe(false);
    expect(isSameAddress('fd00::1%eth0', 'fd00::1')).toBe(false);
  });

  test('open no more than what is inside, however wide they are', () => {
    const wide = addressCheck(['0.0.0.0/0', '::/0', '169.254.0.0/16']);
    const open = ['10.0.0.1', 'fd00::1', '169.254.1.1', '169.254.169.254', '168.63.129.16', '0.0.0.0'].filter(
      wide,
    );
    expect(open).toEqual(['10.0.0.1', 'fd00::1']);
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
  ])('are read: %s → %s', (text, expected) => expect(isRange(text)).toBe(expected));

  test('and addresses are compared as numbers', () => {
    expect(isSameAddress('::ffff:10.0.0.1', '10.0.0.1')).toBe(true);
    expect(isSameAddress('fd00:0:0::1', 'fd00::1')).toBe(true);
    expect(isSameAddress('10.0.0.1', '10.0.0.2')).toBe(false);
    expect(isSameAddress('localhost', 'localhost')).toBe(false);
  });
});
