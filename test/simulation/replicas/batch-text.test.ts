/** What the simulation's Redis reads and writes is what the product writes and reads: nothing of an event or a reply is lost. */
import { expect, test } from '@jest/globals';
import { bucketKey, replicaId } from '../../../src/ids.ts';
import { applyCall } from '../../../src/limiter/redis/protocol/event-codec.ts';
import { readBatch } from '../../../src/limiter/redis/protocol/reply-codec.ts';
import { historyOf } from '../../limiter/parity-history.ts';
import { planOf, startOf } from '../../limiter/parity-model.ts';
import { eventKinds } from '../../support/event-kinds.ts';
import { batchOf, replyText } from './batch-text.ts';

const asking = { bucket: bucketKey('b1'), replica: replicaId('r1') };
const planned = Array.from(
  { length: 60 },
  (_, seed) => planOf(historyOf(seed), 'b1', startOf(seed)).planned,
).flat();

test('the histories have every kind of event', () => {
  const found = new Set(planned.flatMap(({ events }) => events.map(({ kind }) => kind)));
  expect([...found].toSorted()).toEqual(eventKinds.toSorted());
});

test('a batch that was read is written again as the same text', () => {
  for (const { events } of planned) {
    const [text] = applyCall(asking, events).argv;
    expect(applyCall(asking, batchOf(text).events).argv).toEqual([text]);
  }
});

test('a reply that was written is read as the same reply', () => {
  for (const { events, reply } of planned) {
    if (reply === null) continue;
    expect(readBatch(replyText(reply, events), events)).toEqual(reply);
  }
});
