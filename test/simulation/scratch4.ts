import { argv, stdout } from 'node:process';
import { planOf } from './plan.ts';
import { run } from './simulate.ts';
import { Books } from './books.ts';
const plan = planOf(Number(argv[2]));
let left = 1;
const orig = Books.prototype.broken;
Books.prototype.broken = function (this: Books, now, i, t) {
  orig.call(this, now, i, t);
  if (left-- > 0) {
    for (const k of (globalThis as any).dbg.values()) {
      const b = k.bucket;
      stdout.write(
        k.key +
          ' closedUntil ' +
          b.closedUntil +
          ' now ' +
          (now + plan.origin.ms) +
          ' wakeAt ' +
          k.wakeAt +
          ' opened ' +
          b.opened +
          ' waiting ' +
          b.waiting +
          '\n',
      );
      for (const l of b.lanes.values())
        stdout.write(
          JSON.stringify({
            ...l,
            line: l.line.names(),
            waitingCosts: [...l.waitingCosts],
            asleep: [...l.asleep],
          }) + '\n',
        );
      stdout.write(
        JSON.stringify(
          [...b.leases.values()].map((x: any) => ({
            t: x.token,
            ex: x.expiresAt,
            ab: x.abandoned,
            g: x.grantedAt,
          })),
        ) + '\n',
      );
      for (const t of b.tickets.values())
        stdout.write(t.id + ' ' + t.order + ' ' + JSON.stringify(t.costs) + ' ' + t.lease + '\n');
      stdout.write(
        'asleep ' +
          JSON.stringify(b.asleep.names()) +
          ' ready ' +
          [...b.ready].map(([k, v]: any) => k + ':' + v.names()) +
          '\n',
      );
    }
    for (const l of this.lanes.values())
      stdout.write(
        l.plan.key +
          ' line ' +
          [...l.line].map((c) => c.plan.id + ':' + c.state) +
          ' asleep ' +
          l.asleepUntil +
          ' leases ' +
          [...l.leases].filter((x) => x.heldUntil > now).map((x) => x.call.plan.id) +
          '\n',
      );
    for (const c of this.ceilings.values())
      stdout.write(
        JSON.stringify({ n: c.plan.name, pm: c.plan.perMinute, taken: c.taken.length, day: c.daily }) + '\n',
      );
  }
};
const h = await run(plan);
