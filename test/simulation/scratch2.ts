import { argv, stdout } from 'node:process';
import { planOf } from './plan.ts';
import { run } from './simulate.ts';
const plan = planOf(Number(argv[2]));
const id = argv[3]!;
const call = plan.calls.find((c) => c.id === id)!;
stdout.write(
  JSON.stringify(
    {
      ...plan,
      calls: undefined,
      lanes: undefined,
      buckets: plan.buckets.filter((b) => b.key === call.lane.bucket),
      workspaces: plan.workspaces,
    },
    null,
    1,
  ).slice(0, 3000) + '\n',
);
for (const c of plan.calls.filter((c) => c.lane.bucket === call.lane.bucket).sort((a, b) => a.at - b.at))
  stdout.write(
    JSON.stringify({
      ...c,
      lane: c.lane.key + ' w' + c.lane.weight,
      leavesAt: c.leavesAt,
      chargedShare: undefined,
    }) + '\n',
  );
const h = await run(plan);
stdout.write(h.log.join('\n') + '\n');
