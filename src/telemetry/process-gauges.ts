/** The gauges of what one replica holds and how loaded it is. Owns: setting them from one reading at each scrape. */
import type { ProcessPressure } from './events.ts';
import type { Instruments } from './instruments.ts';

export function readProcess(instruments: Instruments, process: ProcessPressure): void {
  instruments.queueBytes.set(process.heldBytes);
  instruments.keptBytes.set(process.keptBytes);
  instruments.headBytes.set(process.headBytes);
  instruments.connections.set(process.connections);
  instruments.openCalls.set(process.openCalls);
  instruments.eventLoopDelay.set(process.eventLoopDelayMs / 1000);
  instruments.memoryUsed.set(process.memoryRatio);
  instruments.shedding.set(process.sheddingShare);
}
