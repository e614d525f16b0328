import { describe, expect, test } from '@jest/globals';
import { isPublicOrInside } from '../../src/target/address.policy.ts';

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
